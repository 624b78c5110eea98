// A prepared kernel does what run() of the public API promises, for a GPU or for the host.
#pragma once

#include <memory>
#include <optional>

#include "codegen/host/backend.h"
#include "flashjit/flashjit.hpp"
#include "runtime/launch/arguments.h"
#include "runtime/compile/compile.h"
#include "runtime/driver/driver.h"
#include "runtime/launch/grid.h"
#include "runtime/launch/tensor_maps.h"
#include "runtime/launch/thread_pool.h"
#include "runtime/launch/work_counters.h"

namespace flashjit {

// Both APIs call this kernel. The C++ and the C API differ in how arguments look, not in what happens to them.
class RunnableKernel : public Kernel {
 public:
  RunnableKernel(const Plan& plan, Facts facts, int ordinal)
      : facts_(std::move(facts)),
        checker_(plan, ordinal),
        rotated_q_(plan.rotated_q),
        value_rows_(plan.value_rows),
        wide_rows_(plan.wide_rows),
        shown_keys_(plan.shown_keys),
        merged_lists_(plan.merged_lists),
        block_states_(plan.block_states),
        tile_lists_(plan.tile_lists),
        last_param_(std::max<std::size_t>(plan.spec.params.size(), 1) - 1) {}
  const Facts& facts() const override { return facts_; }
  Result<void> run(const Arguments& arguments, void* stream) override;
  Result<void> run(const CallArguments& call, void* stream);  // It lets no exception out.
  Result<std::int64_t> workspace_bytes(const Arguments& arguments) const override;
  virtual Result<std::int64_t> workspace_bytes(const CallArguments& call) const;
  std::int64_t workspace_bytes(const CallSizes& sizes) const { return checker_.workspace_bytes(sizes); }
  // Returns where in the workspace a kernel that rotates Q leaves it, contiguous.
  std::int64_t rotated_q_at(const CallSizes& sizes) const { return checker_.offset_of(rotated_q_, sizes); }

 protected:
  virtual Result<void> launch(const CallArguments& call, void* stream) = 0;
  const Facts facts_;
  const ArgumentChecker checker_;
  const int rotated_q_, value_rows_, wide_rows_, shown_keys_, merged_lists_, block_states_,
      tile_lists_;                // numbers of these buffers in the plan
  const std::size_t last_param_;  // the parameter that `block_states_` is for
};

class GpuKernel : public RunnableKernel {
 public:
  // Loads the cubin, so that nothing is left for the first launch to do. `counters` is needed when
  // takes_items(compiled.plan).
  static Result<std::shared_ptr<GpuKernel>> load(const GpuContext& gpu, int ordinal, const Compiled& compiled,
                                                 std::shared_ptr<WorkCounters> counters);

 private:
  GpuKernel(const GpuContext& gpu, int ordinal, const Compiled& compiled);
  Result<void> launch(const CallArguments& call, void* stream) override;

  GpuContext gpu_;
  std::unique_ptr<LoadedLibrary> library_;
  struct Entry {
    CuFunction function;
    KernelLaunch launch;
  };
  bool has_blocks(const CallSizes& sizes) const;
  // Returns the number of SMs that loops of a call with this limit may have.
  Result<int> sms_for(std::int64_t limit) const;
  Result<void> launch(const Entry& entry, CuStream stream, int blocks, bool overlaps, KernelParams& params,
                      TensorMaps& maps, ArgumentChecker::Buffers& buffers) const;
  // These functions put memory of the workspace in place of the call's Q, K, V or lists, for the family's launches.
  void use_buffers(KernelParams& params, const CallSizes& sizes, const ArgumentChecker::Buffers& buffers) const;
  void use_value_rows(KernelParams& params, const CallSizes& sizes, void* rows) const;
  void use_wide_rows(KernelParams& params, const CallSizes& sizes, void* rows) const;
  void use_rotated_q(KernelParams& params, const CallSizes& sizes, void* rotated) const;
  std::vector<Entry> entries_;          // in the order of their launches
  ResidentClusters resident_ = {};      // belongs to the launch of teams
  std::vector<Entry> before_;           // launched before `entries_`, in this order
  const std::vector<OperandMap> maps_;  // empty if no entry takes tensor maps
  const std::vector<InputMap> input_maps_;
  const KernelConfig config_;
  const int sm_count_;
  std::shared_ptr<WorkCounters> counters_;  // null if items are dealt out evenly
};

class HostRunner : public RunnableKernel {
 public:
  HostRunner(const Plan& plan, Facts facts, std::unique_ptr<HostKernel> kernel, std::shared_ptr<ThreadPool> pool);

 private:
  Result<void> launch(const CallArguments& call, void* stream) override;

  std::unique_ptr<HostKernel> kernel_;
  // It writes the gradients of keys, which are then 0, and scales even if a call has no queries.
  bool writes_without_queries_;
  // It writes the gradients of parameters even if a call has no sequences.
  bool writes_always_;
  double products_;  // products of one query and one key in all heads
  std::shared_ptr<ThreadPool> pool_;
  ParallelFor parallel_, alone_;
};

}  // namespace flashjit
