// A kernel of four: what run() does for a spec with `compute=` (compiler/narrowing.h), on GPUs and processors.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/launch/parts.h"

namespace flashjit {

struct NarrowingKernels {
  std::shared_ptr<RunnableKernel> q, k, v, attention;
};

class NarrowingKernel : public RunnableKernel {
 public:
  // Kernels of the parts of the spec.
  static std::shared_ptr<NarrowingKernel> create(int ordinal, const AttentionSpec& spec, const Target& target,
                                                 NarrowingKernels kernels);
  using RunnableKernel::workspace_bytes;
  Result<std::int64_t> workspace_bytes(const CallArguments& call) const override;

 private:
  struct Call;
  // Of one of the tensors, in bytes from the beginning of the workspace. Rows are padded to 16 bytes.
  struct Place {
    std::int64_t rows = 0, scales = 0, row_bytes = 0, blocks = 0;
  };
  struct Room {
    Place q, k, v;
    std::int64_t rest = 0, bytes = 0;  // rest: of one launch after the other
  };
  NarrowingKernel(const Plan& plan, Facts facts, int ordinal, NarrowingKernels kernels);
  Room room(const CallSizes& sizes) const;
  Result<void> launch(const CallArguments& call, void* stream) override;
  Result<void> launch_in(const CallArguments& call, const CallSizes& sizes, void* stream) const;

  const AttentionSpec spec_;
  const bool gpu_;
  const NarrowingKernels kernels_;
};

}  // namespace flashjit
