#include "runtime/launch/kernels.h"

#include "runtime/engine/without_exceptions.h"

namespace flashjit {

Kernel::~Kernel() = default;

Result<void> RunnableKernel::run(const Arguments& arguments, void* stream) {
  return without_exceptions("run", [&]() -> Result<void> {
    CallArguments call;
    FLASHJIT_TRY(view(arguments, call));
    return launch(call, stream);
  });
}

Result<void> RunnableKernel::run(const CallArguments& call, void* stream) {
  return without_exceptions("run", [&] { return launch(call, stream); });
}

GpuKernel::GpuKernel(const GpuContext& gpu, int ordinal, const Compiled& compiled)
    : RunnableKernel(compiled.plan, compiled.facts, ordinal),
      gpu_(gpu),
      config_(compiled.plan.config),
      inputs_(input_places(compiled.plan)),
      grid_(compiled.plan),
      sm_count_(compiled.plan.target.sm_count),
      threads_(compiled.plan.threads),
      smem_bytes_(compiled.plan.smem_bytes) {}

Result<std::shared_ptr<GpuKernel>> GpuKernel::load(const GpuContext& gpu, int ordinal, const Compiled& compiled,
                                                   std::shared_ptr<WorkCounters> counters) {
  if (compiled.source.entries.empty()) return internal("the emitted source names no entry");
  std::shared_ptr<GpuKernel> kernel(new GpuKernel(gpu, ordinal, compiled));
  FLASHJIT_ASSIGN(library, LoadedLibrary::load(gpu, compiled.binary->payload));
  FLASHJIT_ASSIGN(function, library->function(compiled.source.entries.front(), compiled.plan.smem_bytes));
  kernel->library_ = std::move(library);
  kernel->function_ = function;
  if (takes_items(kernel->config_)) kernel->counters_ = std::move(counters);
  return kernel;
}

Result<void> GpuKernel::launch(const CallArguments& call, void* stream) {
  KernelParams params;
  FLASHJIT_TRY(checker_.fill(call, params));
  if (params.tiles_q == 0) return {};
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(current.status());
  CuLaunchConfig config = {};
  config.grid_x = static_cast<unsigned>(grid_.blocks(params, sm_count_));
  config.grid_y = config.grid_z = 1;
  config.block_x = static_cast<unsigned>(threads_);
  config.block_y = config.block_z = 1;
  config.shared_bytes = static_cast<unsigned>(smem_bytes_);
  config.stream = static_cast<CuStream>(stream);
  if (counters_) {
    FLASHJIT_ASSIGN(pair, counters_->take(config.stream));
    params.work_counters = pair;
  }
  TensorMaps maps;
  if (config_.loop == Loop::hopper) {
    FLASHJIT_ASSIGN(layouts, tensor_map_layouts(config_, params));
    FLASHJIT_TRY(encode(*gpu_.driver, config_.element, layouts, maps));
    FLASHJIT_TRY(encode_inputs(*gpu_.driver, config_, inputs_, call, params, maps));
  }
  void* arguments[] = {&params, &maps};  // the driver reads as many as the kernel has
  return gpu_.driver->check(gpu_.driver->api.launch(&config, function_, arguments, nullptr), "cuLaunchKernelEx");
}

HostRunner::HostRunner(const Plan& plan, Facts facts, std::unique_ptr<HostKernel> kernel,
                       std::shared_ptr<ThreadPool> pool)
    : RunnableKernel(plan, std::move(facts), 0), kernel_(std::move(kernel)), pool_(std::move(pool)) {
  parallel_.workers = pool_->workers();
  parallel_.run = [pool = pool_.get()](std::int64_t items, const ThreadPool::Body& body) { pool->run(items, body); };
}

Result<void> HostRunner::launch(const CallArguments& call, void*) {
  KernelParams params;
  FLASHJIT_TRY(checker_.fill(call, params));
  if (params.tiles_q == 0) return {};
  FLASHJIT_TRY(checker_.check_offsets(call));
  return kernel_->run(params, parallel_);
}

}  // namespace flashjit
