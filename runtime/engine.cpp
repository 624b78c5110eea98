// Engine: one device, its store, and the kernels that were prepared for it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <optional>

#include "flashjit/flashjit.hpp"
#include "runtime/bundle.h"
#include "runtime/compile.h"
#include "runtime/environment.h"
#include "runtime/host_library.h"
#include "runtime/kernels.h"

namespace flashjit {
namespace {

// FLASHJIT_LOG: whole lines, appended, so that processes can share the file. Failing to log is no failure.
void log_line(const std::string& file, const std::string& line) {
  if (file.empty()) return;
  const int fd = file == "stderr" ? dup(STDERR_FILENO) : open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, line.data(), line.size());
  close(fd);
}

std::string log_text(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) {
  if (!kernel) return fmt::format("prepare {}: {}: {}\n", spec, name(kernel.error().kind), kernel.error().message);
  const Facts& facts = (*kernel)->facts();
  std::string text = fmt::format("prepare {}: {} for {} in {:.1f} ms, schedule {}, {} registers, key {}\n", facts.spec, facts.source,
                                 facts.target, facts.compile_ms, facts.schedule, facts.registers, facts.key.substr(0, 16));
  for (const std::string& note : facts.notes) text += fmt::format("prepare {}: note: {}\n", facts.spec, note);
  return text;
}

// No exception may reach the caller; what can be thrown here is lack of memory and the like.
template <class T, class Function>
Result<T> without_exceptions(const char* place, const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::Io, fmt::format("{}: out of memory", place), {}};
  } catch (const std::exception& exception) {
    return internal(fmt::format("{}: {}", place, exception.what()));
  }
}

class EngineBase : public Engine {
 public:
  EngineBase(std::string target, std::string log_file, std::optional<Recorder> recorder)
      : target_(std::move(target)), log_file_(std::move(log_file)), recorder_(std::move(recorder)) {}
  std::string target() const override { return target_; }

  Result<std::shared_ptr<Kernel>> prepare(std::string_view spec, const PrepareOptions& options) override {
    return without_exceptions<std::shared_ptr<Kernel>>("prepare", [&] { return find_or_make(spec, options); });
  }

 protected:
  virtual Result<std::shared_ptr<Kernel>> make(std::string_view spec, const std::string& schedule) = 0;
  virtual Result<void> check_capture(void*) const { return {}; }
  // That a line cannot be written must not fail what was asked for.
  void record(Facts& facts, const std::string& pins) const {
    if (!recorder_) return;
    const auto key = bundle_key(facts.spec, target_, pins);
    if (!key) return;
    if (const auto done = recorder_->add({.spec = key->spec, .schedule = key->pins}); !done) {
      facts.notes.push_back("not recorded: " + done.error().message);
    }
  }
  const std::string target_;

 private:
  Result<std::shared_ptr<Kernel>> find_or_make(std::string_view spec, const PrepareOptions& options) {
    const std::string key = fmt::format("{}\n{}", options.schedule, spec);
    if (auto kernel = kernels_.find(key)) return kernel;
    if (options.capturing_stream) FLASHJIT_TRY(check_capture(options.capturing_stream));
    return kernels_
        .get(key,
             [&]() -> Result<std::shared_ptr<Kernel>> {
               auto kernel = make(spec, options.schedule);
               log_line(log_file_, log_text(kernel, spec));
               return kernel;
             })
        .value;
  }

  const std::string log_file_;
  const std::optional<Recorder> recorder_;
  SingleFlight<Kernel> kernels_;
};

class GpuEngine : public EngineBase {
 public:
  GpuEngine(std::string target, const EnvironmentSettings& settings, std::optional<Recorder> recorder, GpuContext gpu, const GpuInfo& info,
            const StoreOptions& store, Bundles bundles)
      : EngineBase(std::move(target), settings.log_file, std::move(recorder)),
        gpu_(std::move(gpu)),
        info_(info),
        store_(store),
        bundles_(std::move(bundles)) {}

 protected:
  Result<std::shared_ptr<Kernel>> make(std::string_view spec, const std::string& schedule) override {
    FLASHJIT_ASSIGN(compiled, compile_spec(spec, target_, schedule, {.store = &store_, .sm_count = info_.sm_count, .bundles = &bundles_}));
    for (const std::string& note : store_.notes()) compiled.facts.notes.push_back(note);
    if (const auto held = bundles_.check_target(target_); !held && !bundles_.empty()) compiled.facts.notes.push_back(held.error().message);
    record(compiled.facts, schedule);
    std::shared_ptr<WorkCounters> counters;
    if (takes_items(compiled.plan.config)) {
      FLASHJIT_ASSIGN(shared, work_counters());
      counters = std::move(shared);
    }
    FLASHJIT_ASSIGN(kernel, GpuKernel::load(gpu_, info_.ordinal, compiled, std::move(counters)));
    return std::shared_ptr<Kernel>(std::move(kernel));
  }

  Result<void> check_capture(void* stream) const override {
    const CurrentContext current(gpu_);
    FLASHJIT_TRY(current.status());
    int capturing = 0;
    FLASHJIT_TRY(gpu_.driver->check(gpu_.driver->api.stream_is_capturing(static_cast<CuStream>(stream), &capturing),
                                    "cuStreamIsCapturing"));
    if (!capturing) return {};
    return Error{ErrorKind::Capture,
                 "capturing_stream: a graph is being captured and this spec is not prepared yet; prepare it before the capture "
                 "begins",
                 {}};
  }

 private:
  // Made for the first kernel that needs them; many engines never have one.
  Result<std::shared_ptr<WorkCounters>> work_counters() {
    const std::lock_guard lock(counters_mutex_);
    if (!counters_) {
      FLASHJIT_ASSIGN(counters, WorkCounters::create(gpu_));
      counters_ = std::move(counters);
    }
    return counters_;
  }

  GpuContext gpu_;
  GpuInfo info_;
  KernelStore store_;
  const Bundles bundles_;
  std::mutex counters_mutex_;
  std::shared_ptr<WorkCounters> counters_;
};

class HostEngine : public EngineBase {
 public:
  HostEngine(std::string target, const EnvironmentSettings& settings, std::optional<Recorder> recorder, HostBackend& backend, int threads)
      : EngineBase(std::move(target), settings.log_file, std::move(recorder)),
        backend_(backend),
        pool_(std::make_shared<ThreadPool>(threads)) {}

 protected:
  Result<std::shared_ptr<Kernel>> make(std::string_view spec, const std::string& schedule) override {
    const auto start = std::chrono::steady_clock::now();
    FLASHJIT_ASSIGN(plan, plan_spec(spec, target_, schedule));
    FLASHJIT_ASSIGN(kernel, backend_.compile(plan, false));
    Facts facts;
    facts.spec = print(plan.spec);
    facts.target = target_;
    facts.schedule = print(plan.schedule);
    facts.family = name(plan.schedule.family.value_or(Family::Host));
    KeyBuilder key;
    key.field("spec", facts.spec);
    key.field("schedule", facts.schedule);
    key.field("target", target_);
    key.field("compiler", backend_.llvm_version());
    facts.key = key.finish().digest;
    facts.source = "compiled";
    facts.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    facts.threads = pool_->workers();
    facts.cubin_bytes = kernel->code_bytes();
    facts.notes = plan.notes;
    record(facts, schedule);
    return std::shared_ptr<Kernel>(std::make_shared<HostRunner>(plan, std::move(facts), std::move(kernel), pool_));
  }

 private:
  HostBackend& backend_;
  std::shared_ptr<ThreadPool> pool_;
};

// Machine code runs on its own architecture and on later minor revisions of the same major one; that of an "a" target on
// exactly its own.
Result<void> check_runs_on(std::string_view target, const GpuInfo& gpu) {
  const Target* own = target_for_compute_capability(gpu.major, gpu.minor);
  if (own && own->name == target) return {};
  const std::string_view digits = target.substr(target.find('_') + 1);
  int capability = 0;
  for (const char c : digits) {
    if (c >= '0' && c <= '9') capability = capability * 10 + (c - '0');
  }
  const bool exact = target.ends_with('a');
  if (!exact && capability / 10 == gpu.major && capability % 10 <= gpu.minor) return {};
  return invalid(fmt::format("target: code for {} does not run on {} (compute capability {}.{}){}", target, gpu.name, gpu.major,
                             gpu.minor, own ? fmt::format("; leave it empty or use {}", own->name) : ""));
}

Result<std::optional<Recorder>> open_recorder(const EngineOptions& options) {
  if (options.record.empty()) return std::optional<Recorder>();
  FLASHJIT_ASSIGN(recorder, Recorder::open(options.record));
  return std::optional<Recorder>(std::move(recorder));
}

// What is missing must be known before the first request, not at it.
Result<Bundles> open_bundles(const EngineOptions& options, const EnvironmentSettings& settings, const std::string& target) {
  FLASHJIT_ASSIGN(bundles, Bundles::open(options.bundles));
  if (!options.required.empty()) FLASHJIT_TRY(bundles.check_manifest(options.required, target));
  if (!settings.jit && bundles.empty()) {
    return Error{ErrorKind::NotFound, "FLASHJIT_JIT=off, and no bundle was given: kernels come from bundles alone then; name them in EngineOptions::bundles "
                                      "(--bundle), and build them with: flashjit build MANIFEST --arch " + target + " -o kernels.fjb", {}};
  }
  if (!settings.jit) FLASHJIT_TRY(bundles.check_target(target));
  return std::move(bundles);
}

Result<std::shared_ptr<Engine>> create_gpu(const EngineOptions& options, const EnvironmentSettings& settings) {
  FLASHJIT_ASSIGN(driver, Driver::open());
  FLASHJIT_ASSIGN(info, driver->device(options.ordinal));
  std::string target = options.target;
  if (target.empty()) {
    const Target* own = target_for_compute_capability(info.major, info.minor);
    if (!own) {
      return unsupported(fmt::format("{} has compute capability {}.{}, for which this build has no target; sm_80 is the oldest, and "
                                     "`target` can name one by hand",
                                     info.name, info.major, info.minor));
    }
    target = own->name;
  } else {
    FLASHJIT_ASSIGN(row, find_target(target));
    if (!row->gpu) return invalid(fmt::format("target: {} is a processor; create the engine with device=Host", target));
    FLASHJIT_TRY(check_runs_on(target, info));
  }
  FLASHJIT_ASSIGN(bundles, open_bundles(options, settings, target));
  if (bundles.empty()) FLASHJIT_TRY(Nvrtc::open(settings.nvrtc));  // else it is only needed for what they lack
  FLASHJIT_ASSIGN(recorder, open_recorder(options));
  FLASHJIT_ASSIGN(gpu, GpuContext::open(driver, options.ordinal));
  const StoreOptions store{.directory = options.cache_dir.empty() ? settings.cache_dir : options.cache_dir,
                           .disk = options.disk_cache && settings.jit,
                           .max_bytes = options.cache_max_bytes};
  return std::shared_ptr<Engine>(std::make_shared<GpuEngine>(target, settings, std::move(recorder), gpu, info, store, std::move(bundles)));
}

Result<std::shared_ptr<Engine>> create_host(const EngineOptions& options, const EnvironmentSettings& settings) {
  if (!settings.jit) {
    return invalid("device=Host with FLASHJIT_JIT=off: host kernels are always compiled where they run, and bundles hold none; unset one of the two");
  }
  FLASHJIT_ASSIGN(recorder, open_recorder(options));
  FLASHJIT_ASSIGN(backend, host_backend());
  std::string target = options.target.empty() || options.target == "host" ? backend->best_target() : options.target;
  FLASHJIT_ASSIGN(row, find_target(target));
  if (row->gpu) return invalid(fmt::format("target: {} is a GPU; create the engine with device=Gpu", target));
  const int threads = options.threads > 0 ? options.threads : settings.threads > 0 ? settings.threads : usable_cores();
  return std::shared_ptr<Engine>(std::make_shared<HostEngine>(std::move(target), settings, std::move(recorder), *backend, threads));
}

}  // namespace

Engine::~Engine() = default;

Result<std::shared_ptr<Engine>> Engine::create(const EngineOptions& options) {
  return without_exceptions<std::shared_ptr<Engine>>("Engine::create", [&]() -> Result<std::shared_ptr<Engine>> {
    FLASHJIT_ASSIGN(settings, read_environment());
    if (options.threads < 0 || options.threads > kMaxThreads) {
      return invalid(fmt::format("threads: {} is outside 0..{}; 0 uses every core", options.threads, kMaxThreads));
    }
    return options.device == Device::Gpu ? create_gpu(options, settings) : create_host(options, settings);
  });
}

const char* version() { return FLASHJIT_VERSION; }

}  // namespace flashjit
