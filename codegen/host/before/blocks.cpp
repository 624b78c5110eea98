#include "codegen/host/before/blocks.h"

#include <cstring>

#include "codegen/host/workspace.h"
#include "compiler/launches/block_states.h"
#include "templates/block_lists/layout.h"

namespace flashjit::host {
namespace {

class KernelInBlocks final : public HostKernel {
 public:
  KernelInBlocks(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention)
      : blocks_(spec.blocks), states_(spec.params.size() - 1), attention_(std::move(attention)) {}

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override {
    const BlockCounts counts =
        block_counts(blocks_, {.batch = params.batch, .q_len = params.q_len, .k_len = params.k_len});
    const std::int64_t bytes = Int64{params.batch} * blocks_.heads * counts.q * counts.k;
    std::unique_ptr<Workspace> workspace = workspaces_.take(bytes);
    if (!workspace) return out_of_memory(bytes, "use larger blocks");
    auto* const states = reinterpret_cast<unsigned char*>(workspace->data());
    parallel.each(Int64{params.batch} * blocks_.heads * counts.q, [&](std::int64_t item, int) {
      const std::int64_t row = item % counts.q, head = item / counts.q % blocks_.heads,
                         b = item / counts.q / blocks_.heads;
      unsigned char* const of_row = states + item * counts.k;
      const int columns = static_cast<int>(counts.k);
      std::memset(of_row, kBlockLeftOut, static_cast<std::size_t>(columns));
      mark_blocks(params.listed_blocks, b, head, row, columns, kBlockListed, 0, 1, of_row);
      mark_blocks(params.full_blocks, b, head, row, columns, kBlockFull, 0, 1, of_row);
    });
    KernelParams with_states = params;
    with_states.extra[states_].data = states;
    auto done = attention_->run(with_states, parallel);
    workspaces_.give_back(std::move(workspace));
    return done;
  }

 private:
  const BlockSizes blocks_;
  const std::size_t states_;  // The number of the parameter that holds the states.
  const std::unique_ptr<HostKernel> attention_;
  mutable WorkspacePool workspaces_;
};

}  // namespace

std::unique_ptr<HostKernel> kernel_in_blocks(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention) {
  return std::make_unique<KernelInBlocks>(spec, std::move(attention));
}

}  // namespace flashjit::host
