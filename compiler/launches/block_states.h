// The launch that `blocks=` in a spec adds to a plan: it makes the tensor that the mask reads of the lists of a call.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

// The launch, before those that ask the mask, and memory for the states of blocks.
void add_block_states(Plan& plan);

// For `explain`; nothing where there is none.
std::string describe_block_states(const Plan& plan);

// Says how many blocks of queries and of keys sequences of a call have.
struct BlockCounts {
  std::int64_t q = 0, k = 0;
};
BlockCounts block_counts(const BlockSizes& blocks, const CallSizes& sizes);

}  // namespace flashjit
