// The launch that `blocks=` in a spec adds to a plan: it turns the lists of a call into the tensor that the mask reads.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

// Adds the launch, before those that evaluate the mask, and memory for the states of blocks.
void add_block_states(Plan& plan);

// Returns the text of `explain`; empty: there is no such launch.
std::string describe_block_states(const Plan& plan);

// The number of blocks of queries and of keys that the sequences of a call have.
struct BlockCounts {
  std::int64_t q = 0, k = 0;
};
BlockCounts block_counts(const BlockSizes& blocks, const CallSizes& sizes);

}  // namespace flashjit
