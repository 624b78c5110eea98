// Cases of merges: results over parts of the keys with parts that have seen nothing, and LSE far apart.
#pragma once

#include "tests/random/spec_generator.h"

namespace flashjit::testing_random {

constexpr std::uint64_t kMergesAmong = 25;  // cases one is a merge

Case draw_merge(std::uint64_t seed, const GeneratorOptions& options);

// As many queries as each q_lens says, and as many parts as the first of k_lens.
Case make_merge(std::uint64_t seed, const FixedCase& row);

}  // namespace flashjit::testing_random
