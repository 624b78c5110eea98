// In which order the loop does things, as far as it follows from the config.
#pragma once

#include "templates/hopper/softmax.cuh"

namespace flashjit {

constexpr bool kStagesOutput = stages_output(config), kReplacesQueries = output_replaces_queries(config);
constexpr bool kTakesTurns = kWarpgroups > 1 && config.exclusive == Exclusive::issue;

// Sums that the matrix unit adds up lie in O: where no turn waits for it a look at them between main steps costs nothing, and
// one loop less around all registers of a tile compiles in 0.965 of the time (d=128; NVRTC 13.0, 2026-11-25).
constexpr bool kLooksInLoop = kLooksBack && kSumInMatrix && !kTakesTurns;

// Beside P V of a tile in registers of its own, what a score reads of tensors is read when O has taken that in, and has these
// registers. So 128 keys leave room for it (bias, d=128: 0.75 of the time of 64 keys; H200, 2026-11-25).
constexpr bool kInputsAfter = kAddsTiles && kOverlaps && kHasInputs && kLogitsInPass;
// Many instructions on the FMA pipes slow products down that run beside them: P V first (softcap, d=128: 1.08 to 1.12;
// H200, 2026-11-21).
constexpr bool kWaitsFirst = kInputsAfter || (kOverlaps && config.score_has_tanh && kLogitsInPass);

// P V of a tile has registers of its own, and O takes it in a step later, while the next scores are multiplied.
constexpr bool kTakesInLater = kAddsTiles && kOverlaps && !kWaitsFirst && !kMainIsCareful;
// So many tiles are added up before O does.
constexpr int kTilesOfSum = tiles_of_sum(config);
static_assert(kTilesOfSum == 1 || kTakesInLater, "else O takes in what is not all multiplied");
// In the step of this tile, does P V of the one before it join what O has not taken in? By the number of the tile: where the
// ring stands depends on what the block has done before, and bits must not.
__device__ inline bool joins_sum(int tile) {
  return kTilesOfSum > 1 && static_cast<u32>(tile) % kTilesOfSum != kTilesOfSum - 1;
}
// P is an operand until the product of the tile before is done. That is waited for when half of the scores are exponentiated,
// so that the others are converted as they come; but beside products with ones not (d=64 1.07; H200, 2026-11-28): there ptxas
// puts exponentials behind the wait wherever that stands, and where it stands between them and their conversion, merges no
// halves of a word as they are converted (d=64, 128: 255, 387 instructions a step for 243, 371; NVRTC 13.0).
constexpr bool kCompletesHalfway = kTakesInLater && !kSumInMatrix;
constexpr bool kCompletesFirst = kWaitsFirst || (kTakesInLater && kSumInMatrix);
// Between two items O takes in what is left of one at once: its last product is added to the tiles before. (Not where their
// V has other scales.)
constexpr bool kAddsOnTop = kTakesInLater && !kHasUnits;

// Where no scores are under way, the product has their place, and O takes it in before they come.
constexpr bool kAddsFirst = kAddsTiles && !kOverlaps;
using OutputPiece = float[kProductColumns / 2];

template <class F>
__device__ constexpr bool is_same(F* a, F* b) {
  return a == b;
}
template <class F, class G>
__device__ constexpr bool is_same(F*, G*) {
  return false;
}
// The tiles that a window begins in take the main step as well: rows have references by then. (Window of 1024, d=128: 1.03,
// linear_exp 1.08; of 16 bits 0.975; H200, 2026-11-28.)
constexpr bool kMasksInStep = kNarrow && config.mask_is_range && !config.mask_has_holes && !kMainIsCareful &&
                              !is_same(&Variant::full_begin, &Plain::full_begin);

}  // namespace flashjit
