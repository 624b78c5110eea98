// A spec with `compute=` is run by a kernel that is made of four (compiler/narrowing.h), on GPUs and processors.
#pragma once

#include <memory>

#include "codegen/host/workspace.h"
#include "compiler/narrowing.h"
#include "runtime/launch/composite/composite.h"

namespace flashjit {

struct NarrowingKernels {
  std::shared_ptr<RunnableKernel> q, k, v, attention;
};

class NarrowingKernel : public RunnableKernel {
 public:
  // Creates the kernel from the components of the spec.
  static std::shared_ptr<NarrowingKernel> create(int ordinal, const AttentionSpec& spec, const Target& target,
                                                 NarrowingKernels kernels);
  using RunnableKernel::workspace_bytes;
  Result<std::int64_t> workspace_bytes(const CallArguments& call) const override;

 private:
  struct Call;
  NarrowingKernel(const Plan& plan, Facts facts, int ordinal, NarrowingKernels kernels);
  // Returns the bytes of the workspace. Behind Q, K and V in 8 bits there is room for one launch after the other.
  std::int64_t bytes_of(const CallSizes& sizes) const;
  Result<void> launch(const CallArguments& call, void* stream) override;
  Result<void> launch_in(const CallArguments& call, const CallSizes& sizes, void* stream) const;

  const AttentionSpec spec_;
  const bool gpu_;
  const NarrowingKernels kernels_;
  host::WorkspacePool workspaces_;  // used on processors only
};

}  // namespace flashjit
