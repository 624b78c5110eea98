// Figures and functions that the cost models of the families share. Each family has its own model in
// families/*/cost.cpp.
#pragma once

#include <algorithm>
#include <memory>

#include "compiler/choice/cost_model.h"

namespace flashjit {

constexpr double kIssuePerClock = 128;  // Lanes of an SM for each clock.
// Instruction slots of a score that nothing hides, as the fits give them for max, scale, exp, sum and half a
// conversion.
constexpr double kSoftmaxSlots = 3;

// It gives work_of for visited tiles of any length, and draws the sample of tiles that visit them once. Spec and
// analysis must outlive it.
class WorkSampler {
 public:
  WorkSampler(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int sampled);
  ~WorkSampler();
  const Work& with(int visited);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Clocks of a KV tile of one block, for each unit alone at its full rate.
struct TileClocks {
  double mma = 0, exp = 0, issue = 0, smem = 0, l2 = 0;
  double bound() const { return std::max({mma, exp, issue, smem}); }
};

// Return the instruction slots that the score function, and the mask in the tiles that it cuts, add to a score. The
// first nodes of a mask are free.
double score_slots(const Work& work);
double mask_slots(const Work& work, int free_nodes);
// Votes by rows leave this share of the slots of a mask [M4].
constexpr double kVotedSlots = 0.5;

// Returns the multiply-adds of each score in all products: S and O in forward; S, dP, dV, dK and dQ in backward; S of
// an index, O of a merge, and none of a quantize.
double summed_dims(const AttentionSpec& spec);

// Returns the keys that some query of head 0 of sequence 0 sees, as far as tensors of a call do not decide it.
std::int64_t seen_keys(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape);

// Returns the bytes of x, which a quantize reads.
double quantized_bytes(const AttentionSpec& spec, const Shape& shape);
// Returns the bytes if Q, K and V, the parts of a merge, or x are read once, and the results are written once.
double unique_bytes(const AttentionSpec& spec, const Shape& shape);

// Returns the time until the last of `blocks` blocks is done. They take `mean` clocks, and the longest takes `longest`,
// on so many slots.
double makespan(double blocks, double slots, double mean, double longest, bool longest_first);

// Adds the time that each unit takes for `tiles` tiles of an SM, and memory for the problem.
void add_units(Prediction& prediction, const TileClocks& tile, double tiles, const AttentionSpec& spec,
               const Target& target, const Shape& shape);

}  // namespace flashjit
