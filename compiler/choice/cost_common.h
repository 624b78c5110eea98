// The cost models of the families share these figures and functions: each has its own model in families/*/cost.cpp.
#pragma once

#include <algorithm>
#include <memory>

#include "compiler/choice/cost_model.h"

namespace flashjit {

constexpr double kIssuePerClock = 128;  // lanes per clock and SM
// Instruction slots per score that are not hidden: of max, scale, exp, sum and half a conversion, what the fits left
// over.
constexpr double kSoftmaxSlots = 3;

// work_of for visited tiles of any length; the sample of tiles that visit them is drawn once. Spec and analysis must
// outlive it.
class WorkSampler {
 public:
  WorkSampler(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape, int sampled);
  ~WorkSampler();
  const Work& with(int visited);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Clocks per KV tile of one block, each unit alone at its full rate.
struct TileClocks {
  double mma = 0, exp = 0, issue = 0, smem = 0, l2 = 0;
  double bound() const { return std::max({mma, exp, issue, smem}); }
};

// Instruction slots that the score function adds to a score, and the mask in the tiles that it cuts, but for its first
// nodes.
double score_slots(const Work& work);
double mask_slots(const Work& work, int free_nodes);
// Votes by rows leave this share of the slots of a mask [M4].
constexpr double kVotedSlots = 0.5;

// Multiply-adds of each score, in all products: S and O; S, dP, dV, dK and dQ; those of a merge, and of a quantize none.
double summed_dims(const AttentionSpec& spec);

// Keys that some query sees, as far as that does not depend on what a call brings: of head 0 of sequence 0.
std::int64_t seen_keys(const AttentionSpec& spec, const TileAnalysis& tiles, const Shape& shape);

// x, which a quantize reads.
double quantized_bytes(const AttentionSpec& spec, const Shape& shape);
// Q, K and V read once, or the parts of a merge, or x; O or y written once.
double unique_bytes(const AttentionSpec& spec, const Shape& shape);

// Time until the last block is done when `blocks` blocks of `mean` clocks (the longest `longest`) run on so many slots.
double makespan(double blocks, double slots, double mean, double longest, bool longest_first);

// The time that each unit takes for `tiles` tiles of an SM, and memory for the problem.
void add_units(Prediction& prediction, const TileClocks& tile, double tiles, const AttentionSpec& spec,
               const Target& target, const Shape& shape);

}  // namespace flashjit
