#include <fmt/format.h>

#include "flashjit/flashjit.hpp"
#include "runtime/engine/create.h"
#include "runtime/engine/without_exceptions.h"
#include "runtime/launch/dropout_mask.h"
#include "runtime/launch/thread_pool.h"

namespace flashjit {

Engine::~Engine() = default;

Result<std::shared_ptr<Engine>> Engine::create(const EngineOptions& options) {
  return without_exceptions("Engine::create", [&]() -> Result<std::shared_ptr<Engine>> {
    FLASHJIT_ASSIGN(settings, read_environment());
    return create_engine(options, settings);
  });
}

namespace {

Result<PrepareLog> open_log(const EngineOptions& options, const EnvironmentSettings& settings) {
  if (options.record.empty()) return PrepareLog::open(settings.log_file, settings.record, "FLASHJIT_RECORD");
  return PrepareLog::open(settings.log_file, options.record, "record");
}

}  // namespace

Result<std::shared_ptr<Engine>> create_engine(const EngineOptions& options, const EnvironmentSettings& settings) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return invalid(fmt::format("threads: {} is outside 0..{}; 0 uses every core", options.threads, kMaxThreads));
  }
  FLASHJIT_ASSIGN(trusted, options.trusted_list.empty() ? TrustedList::read(settings.trusted_list)
                                                        : TrustedList::read(options.trusted_list, "trusted_list"));
  FLASHJIT_ASSIGN(log, open_log(options, settings));
  EngineFiles files{std::move(trusted), std::move(log)};
  EnvironmentSettings of_engine = settings;
  of_engine.jit = settings.jit && options.jit;
  return options.device == Device::Gpu ? create_gpu_engine(options, of_engine, std::move(files))
                                       : create_host_engine(options, of_engine, std::move(files));
}

std::string store_path(const EngineOptions& options, const EnvironmentSettings& settings) {
  if (!options.disk_cache) return {};
  return options.cache_dir.empty() ? settings.cache_dir : options.cache_dir;
}

int host_threads(const EngineOptions& options, const EnvironmentSettings& settings) {
  return options.threads > 0 ? options.threads : settings.threads > 0 ? settings.threads : usable_cores();
}

// Without JIT, kernels come from bundles alone.
StoreOptions store_options(const EngineOptions& options, const EnvironmentSettings& settings,
                           std::shared_ptr<const TrustedList> trusted) {
  return {.directory = store_path(options, settings),
          .disk = options.disk_cache && settings.jit,
          .max_bytes = options.cache_max_bytes,
          .trusted = std::move(trusted)};
}

Result<void> dropout_mask(double dropout, std::int64_t seed, std::int64_t offset, const Tensor& kept) {
  return without_exceptions("dropout_mask", [&]() -> Result<void> {
    TensorView mask;
    FLASHJIT_TRY(view(kept, "kept", mask));
    return write_dropout_mask(dropout, seed, offset, mask);
  });
}

const char* version() { return FLASHJIT_VERSION; }

}  // namespace flashjit
