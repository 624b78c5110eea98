#include "runtime/kernels.h"

#include <fmt/format.h>

#include <exception>
#include <limits>
#include <new>

namespace flashjit {

Kernel::~Kernel() = default;

Result<void> RunnableKernel::run(const Arguments& arguments, void* stream) {
  FLASHJIT_ASSIGN(call, view(arguments));
  return run(call, stream);
}

Result<void> RunnableKernel::run(const CallArguments& call, void* stream) {
  try {
    return launch(call, stream);
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::Io, "run: out of memory", {}};
  } catch (const std::exception& exception) {
    return internal(std::string("run: ") + exception.what());
  }
}

GpuKernel::GpuKernel(const GpuContext& gpu, int ordinal, const Compiled& compiled)
    : RunnableKernel(compiled.plan, compiled.facts, ordinal),
      gpu_(gpu),
      heads_q_(compiled.plan.spec.heads_q),
      threads_(compiled.plan.threads),
      smem_bytes_(compiled.plan.smem_bytes) {}

Result<std::shared_ptr<GpuKernel>> GpuKernel::load(const GpuContext& gpu, int ordinal, const Compiled& compiled) {
  if (compiled.source.entries.empty()) return internal("the emitted source names no entry");
  std::shared_ptr<GpuKernel> kernel(new GpuKernel(gpu, ordinal, compiled));
  FLASHJIT_ASSIGN(library, LoadedLibrary::load(gpu, compiled.binary->payload));
  FLASHJIT_ASSIGN(function, library->function(compiled.source.entries.front(), compiled.plan.smem_bytes));
  kernel->library_ = std::move(library);
  kernel->function_ = function;
  return kernel;
}

Result<void> GpuKernel::launch(const CallArguments& call, void* stream) {
  KernelParams params;
  FLASHJIT_TRY(checker_.fill(call, params));
  if (params.tiles_q == 0) return {};
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(current.status());
  CuLaunchConfig config = {};
  config.grid_x = static_cast<unsigned>(params.tiles_q) * static_cast<unsigned>(heads_q_) * static_cast<unsigned>(params.batch);
  config.grid_y = config.grid_z = 1;
  config.block_x = static_cast<unsigned>(threads_);
  config.block_y = config.block_z = 1;
  config.shared_bytes = static_cast<unsigned>(smem_bytes_);
  config.stream = static_cast<CuStream>(stream);
  void* arguments[] = {&params};
  return gpu_.driver->check(gpu_.driver->api.launch(&config, function_, arguments, nullptr), "cuLaunchKernelEx");
}

Result<std::shared_ptr<NaiveGpuKernel>> NaiveGpuKernel::load(const GpuContext& gpu, int ordinal, const Compiled& compiled) {
  if (compiled.source.entries.size() != 3) return internal("the textbook version must have three entries");
  std::shared_ptr<NaiveGpuKernel> kernel(new NaiveGpuKernel(gpu, ordinal, compiled));
  FLASHJIT_ASSIGN(library, LoadedLibrary::load(gpu, compiled.binary->payload));
  const NaiveLaunch sizes = naive_launch(kernel->config_, 1, 1, 1);
  for (int i = 0; i < 3; ++i) {
    FLASHJIT_ASSIGN(function, library->function(compiled.source.entries[static_cast<std::size_t>(i)], sizes.smem[i]));
    kernel->functions_[i] = function;
  }
  kernel->library_ = std::move(library);
  return kernel;
}

Result<void> NaiveGpuKernel::grow(const GpuContext& gpu, DeviceBuffer& buffer, std::int64_t bytes) {
  if (static_cast<std::size_t>(bytes) <= buffer.bytes()) return {};
  buffer = DeviceBuffer();  // the old one first: both may not fit
  FLASHJIT_ASSIGN(larger, DeviceBuffer::allocate(gpu, static_cast<std::size_t>(bytes)));
  buffer = std::move(larger);
  return {};
}

Result<void> NaiveGpuKernel::launch(const CallArguments& call, void* stream) {
  KernelParams params;
  FLASHJIT_TRY(checker_.fill(call, params));
  if (params.tiles_q == 0) return {};
  const NaiveLaunch sizes = naive_launch(config_, params.batch, params.q_len, params.k_len);
  const std::lock_guard lock(mutex_);
  FLASHJIT_TRY(grow(gpu_, scores_, sizes.scores_bytes));
  FLASHJIT_TRY(grow(gpu_, probabilities_, sizes.probabilities_bytes));
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(current.status());
  void *scores = scores_.data(), *probabilities = probabilities_.data();
  void* arguments[] = {&params, &scores, &probabilities};
  for (int i = 0; i < 3; ++i) {
    if (sizes.grid[i] == 0) continue;
    if (sizes.grid[i] > std::numeric_limits<std::int32_t>::max()) {
      return unsupported(fmt::format("the textbook version would need {} blocks, more than a launch can have; use a smaller problem",
                                     sizes.grid[i]));
    }
    CuLaunchConfig config = {};
    config.grid_x = static_cast<unsigned>(sizes.grid[i]);
    config.grid_y = config.grid_z = 1;
    config.block_x = kNaiveThreads;
    config.block_y = config.block_z = 1;
    config.shared_bytes = static_cast<unsigned>(sizes.smem[i]);
    config.stream = static_cast<CuStream>(stream);
    FLASHJIT_TRY(gpu_.driver->check(gpu_.driver->api.launch(&config, functions_[i], arguments, nullptr), "cuLaunchKernelEx"));
  }
  return {};
}

HostRunner::HostRunner(const Plan& plan, Facts facts, std::unique_ptr<HostKernel> kernel, std::shared_ptr<ThreadPool> pool)
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
