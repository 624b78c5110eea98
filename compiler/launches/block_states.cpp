#include "compiler/launches/block_states.h"

#include <fmt/format.h>

#include "templates/block_lists/layout.h"

namespace flashjit {

void add_block_states(Plan& plan) {
  if (!has_blocks(plan.spec)) return;
  const BlockSizes& blocks = plan.spec.blocks;
  plan.block_states = static_cast<int>(plan.workspace.size());
  plan.before.insert(plan.before.begin(), {.entry = "flashjit_block_states",
                                           .threads = kBlockStateThreads,
                                           .grid = {.queries = blocks.q, .heads = blocks.heads},
                                           .buffers = {plan.block_states},
                                           .bounds = "flashjit::kBlockStateThreads",
                                           .call = fmt::format("write_block_states<{}, {}, {}>(params, block_states)",
                                                               blocks.q, blocks.k, blocks.heads),
                                           .file = "templates/block_lists/states.cuh"});
  plan.workspace.push_back(
      {"block_states",
       "unsigned char",
       blocks.heads,
       {{&CallSizes::batch}, {&CallSizes::q_len, blocks.q, true}, {&CallSizes::k_len, blocks.k, true}}});
}

std::string describe_block_states(const Plan& plan) {
  if (plan.block_states < 0) return {};
  return "  a launch before it writes down, for the mask, which blocks the lists of the call have\n";
}

BlockCounts block_counts(const BlockSizes& blocks, const CallSizes& sizes) {
  return {(sizes.q_len + blocks.q - 1) / blocks.q, (sizes.k_len + blocks.k - 1) / blocks.k};
}

}  // namespace flashjit
