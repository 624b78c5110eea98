// A spec with `shared_prefix` is run on a GPU by a kernel that is made of three (compiler/cascade.h).
#pragma once

#include <array>
#include <memory>

#include "compiler/cascade.h"
#include "runtime/driver/device_memory.h"
#include "runtime/launch/kernels.h"

namespace flashjit {

struct CascadeKernels {
  std::shared_ptr<RunnableKernel> prefix, own, merge;
};

class CascadeKernel : public RunnableKernel {
 public:
  // Creates the kernel from the components of the spec's cascade.
  static Result<std::shared_ptr<CascadeKernel>> create(const GpuContext& gpu, int ordinal, const AttentionSpec& spec,
                                                       const Target& target, CascadeKernels kernels);
  using RunnableKernel::workspace_bytes;
  Result<std::int64_t> workspace_bytes(const CallArguments& call) const override;

 private:
  struct Call;
  // The attentions leave their results at these offsets, in bytes from the beginning of the workspace.
  struct Room {
    std::int64_t pieces = 0, rows = 0;  // `rows` counts the rows of a part.
    // `own` and `prefix` are workspaces of the attentions.
    std::int64_t lse = 0, maxima = 0, own = 0, prefix = 0, bytes = 0;
    std::int64_t rotated_q = 0;
  };
  CascadeKernel(const Plan& plan, Facts facts, int ordinal, CascadeKernels kernels, DeviceBuffer lengths);
  Room room(const CallSizes& sizes) const;
  Result<void> launch(const CallArguments& call, void* stream) override;

  const AttentionSpec spec_;
  const Target target_;
  const CascadeKernels kernels_;
  // These are lengths of the pieces, longer than any can be, so that each piece takes all keys that it has room for.
  const DeviceBuffer lengths_;
  std::vector<std::string> score_params_;
};

}  // namespace flashjit
