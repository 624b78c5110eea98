#include "autotune/search/session.h"

#include <fmt/format.h>

#include "autotune/measure/in_process.h"
#include "compiler/spec/target.h"
#include "runtime/engine/create.h"

namespace flashjit {

Result<std::unique_ptr<Session>> Session::open(const std::string& where, EngineOptions options,
                                               const EnvironmentSettings& settings) {
  enable_in_prepare();
  // A processor has no bundles, no source files and no second device, so a caller who names them wants a GPU.
  const bool of_gpu = !options.bundles.empty() || !options.override_dir.empty() || options.ordinal != 0;
  const bool try_host = where == "auto" && !of_gpu;
  if (where == "host") {
    options.device = Device::Host;
  } else if (where != "auto" && where != "gpu") {
    auto row = find_target(where);
    if (!row) {
      Error error = row.error();
      error.message = fmt::format("--target: gpu, host, auto or a name of the target table; {}", error.message);
      return error;
    }
    options.device = (*row)->gpu ? Device::Gpu : Device::Host;
    options.target = where;
  }
  auto session = std::make_unique<Session>();
  session->settings_ = settings;
  auto engine = create_engine(options, settings);
  if (!engine && try_host) {
    options.device = Device::Host;
    auto host = create_engine(options, settings);
    // This error belongs to neither device.
    if (!host && host.error().message == engine.error().message) return engine.error();
    if (!host) {
      return Error{ErrorKind::NotFound,
                   fmt::format("neither a GPU nor the host backend can be used. GPU: {}. Host: {}",
                               engine.error().message, host.error().message),
                   {}};
    }
    engine = std::move(host);
  }
  if (!engine) return engine.error();
  session->engine_ = std::move(*engine);
  if (options.device == Device::Host) {
    session->machine_ = host_machine(session->target(), host_threads(options, settings));
    return session;
  }
  FLASHJIT_ASSIGN(driver, Driver::open());
  FLASHJIT_ASSIGN(info, driver->device(options.ordinal));
  FLASHJIT_ASSIGN(gpu, GpuContext::open(driver, options.ordinal));
  FLASHJIT_ASSIGN(stream, Stream::create(gpu));
  session->gpu_ = gpu;
  session->ordinal_ = options.ordinal;
  session->stream_ = std::move(stream);
  session->l2_bytes_ = static_cast<std::size_t>(info.l2_bytes);
  session->machine_ = gpu_machine(session->target(), info, driver->version());
  session->uuid_ = info.uuid;
  return session;
}

GpuState Session::state() const { return on_gpu() ? gpu_state(uuid_) : GpuState(); }

Result<Sampler> Session::sampler() const {
  if (on_gpu()) return gpu_sampler(*gpu_, *stream_, l2_bytes_);
  return host_sampler();
}

Result<std::vector<Timing>> Session::measure(const std::vector<Launch>& subjects, const MeasureOptions& options,
                                             const RoundDone& round_done) const {
  if (on_gpu()) return measure_gpu(*gpu_, *stream_, l2_bytes_, subjects, options, round_done);
  return measure_host(subjects, options, round_done);
}

}  // namespace flashjit
