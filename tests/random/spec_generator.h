// Makes cases: drawn from one 64-bit seed, or from a row of a table.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "tests/random/case.h"

namespace flashjit::testing_random {

struct GeneratorOptions {
  Device device = Device::Host;  // fp32 inputs are drawn for the host only
  bool large = false;            // lengths up to a few thousand instead of a few hundred
};

Case draw_case(std::uint64_t seed, const GeneratorOptions& options);

enum class Data { Normal, Sharp, Equal, Huge, Zero, NotFinite };

struct FixedCase {
  std::string_view name;
  std::string_view spec;
  std::vector<std::int64_t> q_lens, k_lens;  // one per sequence; dense layouts: all alike
  Data data = Data::Normal;
  bool far_batches = false;  // the last two batches of K lie more than 2^31 elements apart
  bool gpu_only = false;
};

// The spec must parse. Parameters get data by their rank and type: fp32 [heads], i32 [batch, position],
// i64 [batch, query, word], bias tensors; the meaning comes from the spec's own expressions.
Case make_case(const FixedCase& row);

}  // namespace flashjit::testing_random
