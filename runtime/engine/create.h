// Creates engines for callers that have read the environment already: an engine keeps the settings that it was created
// with.
#pragma once

#include <memory>
#include <string>

#include "flashjit/flashjit.hpp"
#include "runtime/engine/environment.h"
#include "runtime/engine/prepare_log.h"
#include "runtime/store/store.h"

namespace flashjit {

Result<std::shared_ptr<Engine>> create_engine(const EngineOptions& options, const EnvironmentSettings& settings);

// Options and the environment name these files, whatever the device is. They are opened first, so that no error about a
// device hides one about them.
struct EngineFiles {
  std::shared_ptr<const TrustedList> trusted;
  PrepareLog log;
};

// These create the two kinds of engine.
Result<std::shared_ptr<Engine>> create_gpu_engine(const EngineOptions& options, const EnvironmentSettings& settings,
                                                  EngineFiles files);
Result<std::shared_ptr<Engine>> create_host_engine(const EngineOptions& options, const EnvironmentSettings& settings,
                                                   EngineFiles files);

// Returns how many threads compute on a processor.
int host_threads(const EngineOptions& options, const EnvironmentSettings& settings);

// Returns where kernels and tuning records are kept, or an empty path if they are kept nowhere.
std::string store_path(const EngineOptions& options, const EnvironmentSettings& settings);
StoreOptions store_options(const EngineOptions& options, const EnvironmentSettings& settings,
                           std::shared_ptr<const TrustedList> trusted);

}  // namespace flashjit
