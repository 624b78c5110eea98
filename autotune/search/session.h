// A place where specs are run and measured: a GPU or the host, opened once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autotune/measure/gpu_monitor.h"
#include "autotune/measure/measure.h"
#include "compiler/result.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"
#include "runtime/engine/environment.h"
#include "runtime/tuned/records.h"

namespace flashjit {

class Session {
 public:
  // `where` is gpu, host, auto (a GPU if there is one, else the host), or a row of the target table. `options` are all
  // but device and target.
  static Result<std::unique_ptr<Session>> open(const std::string& where, EngineOptions options,
                                               const EnvironmentSettings& settings);

  bool on_gpu() const { return gpu_.has_value(); }
  std::string target() const { return engine_->target(); }
  // These are the settings that the session was opened with.
  const EnvironmentSettings& settings() const { return settings_; }
  Engine& engine() { return *engine_; }
  const GpuContext& gpu() const { return *gpu_; }
  const Stream& stream() const { return *stream_; }
  int ordinal() const { return ordinal_; }  // This is the GPU's.
  const Machine& machine() const { return machine_; }
  const std::string& uuid() const { return uuid_; }  // It names the GPU, and is empty on the host.
  GpuState state() const;                            // It tells of the GPU as much as is known.
  Result<Sampler> sampler() const;
  Result<std::vector<Timing>> measure(const std::vector<Launch>& subjects, const MeasureOptions& options,
                                      const RoundDone& round_done) const;

 private:
  EnvironmentSettings settings_;
  std::shared_ptr<Engine> engine_;
  std::optional<GpuContext> gpu_;
  std::optional<Stream> stream_;
  std::size_t l2_bytes_ = 0;
  int ordinal_ = 0;
  Machine machine_;
  std::string uuid_;
};

}  // namespace flashjit
