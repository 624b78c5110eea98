// Makes cases: drawn from one 64-bit seed, or from a row of a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "tests/random/case.h"

namespace flashjit::testing_random {

enum class Data {
  // Those that are drawn.
  Normal,
  Sharp,
  Equal,
  Huge,
  Zero,
  NotFinite,
  // What a softmax that goes over the keys in tiles can get wrong. Kernels may go from the last key to the first, so
  // "late" is key 0 and "early" the last one. `jump` is in nats. A third of the queries do not see the jump.
  LateJump,     // the logit of key 0 is above the others
  EarlyPeak,    // that of the last key is
  EarlyLow,     // the last 300 keys are below the others
  Staircase,    // logits rise by `jump` every 64 keys towards key 0
  OneKey,       // the logit of one key, another one in every head, is above the others
  Rising,       // logits rise by `jump` from key 0 to the last, evenly
  Falling,      // they fall
  Combs,        // every 64th key is above the others
  LargeValues,  // LateJump, and V is near the largest number of fp16, or so large in bf16 that 2^30 times it is no fp32
  Poisoned,     // single infinities and NaN: in Q, at key 0 or at the last key of K or V, another place in every head
  Neighbours,   // every second sequence is NaN and infinities
  Codes,        // caches of 8 bits: every code of the type, but those of infinity and NaN
  Scales,       // caches of 8 bits: scales of 0, below 0, tiny and huge ones
  MeanValues,   // those of V have a mean as large as their deviation
  Tail,         // K and V are NaN and infinities from a key on, as in caches that are not full
};

inline constexpr std::string_view kDataNames[] = {
    "normal",       "sharp",     "equal",      "huge",    "zero",   "a few inf and nan", "late jump",
    "early peak",   "early low", "staircase",  "one key", "rising", "falling",           "combs",
    "large values", "poisoned",  "neighbours", "codes",   "scales", "mean values",       "tail"};
inline constexpr std::size_t kDrawnKinds = 6;

struct GeneratorOptions {
  Device device = Device::Host;  // fp32 inputs are drawn for the host only
  bool large = false;            // lengths up to a few thousand instead of a few hundred
  std::optional<Data> data;      // instead of what is drawn
  bool numbers = true;           // Q, K and V have numbers; without them the spec and the sizes are found sooner
};

Case draw_case(std::uint64_t seed, const GeneratorOptions& options);

struct FixedCase {
  std::string_view name;
  std::string_view spec;
  std::vector<std::int64_t> q_lens, k_lens;  // one per sequence; dense layouts: all alike; packed: see `stray`
  Data data = Data::Normal;
  bool far_batches = false;  // the last two batches of K lie more than 2^31 elements apart
  bool gpu_only = false;
  double jump = 0;
  bool many_schedules = false;  // on a GPU: under all kinds of softmax, not only one of each family
  bool side_by_side = false;    // on a GPU: also launched many times, on streams and in graphs
  std::int64_t stray = 0;       // packed: so many tokens in front of the first sequence, and behind the last one
};

// The spec must parse. Parameters get data by their rank and type: fp32 [heads], i32 [batch, position],
// i64 [batch, query, word], bias tensors; the meaning comes from the spec's own expressions.
Case make_case(const FixedCase& row);

}  // namespace flashjit::testing_random
