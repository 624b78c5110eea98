// Engine: one device, its store, and the kernels that were prepared for it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <mutex>

#include "flashjit/flashjit.hpp"
#include "runtime/compile.h"
#include "runtime/environment.h"
#include "runtime/host_library.h"
#include "runtime/kernels.h"
#include "runtime/tuned_choice.h"

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
  EngineBase(Machine machine, const EngineOptions& options, const EnvironmentSettings& settings)
      : target_(machine.target), machine_(std::move(machine)), log_file_(settings.log_file), tuned_(options.tuned),
        record_path_(!options.disk_cache ? "" : options.cache_dir.empty() ? settings.cache_dir : options.cache_dir) {}
  std::string target() const override { return target_; }

  Result<std::shared_ptr<Kernel>> prepare(std::string_view spec, const PrepareOptions& options) override {
    return without_exceptions<std::shared_ptr<Kernel>>("prepare", [&] { return find_or_make(spec, options); });
  }

 protected:
  // `note`: what is to be known about the schedule; may be empty.
  virtual Result<std::shared_ptr<Kernel>> make(std::string_view spec, const std::string& schedule, const std::string& note) = 0;
  virtual Result<void> check_capture(void*) const { return {}; }
  const std::string target_;

 private:
  Result<std::shared_ptr<Kernel>> find_or_make(std::string_view spec, const PrepareOptions& options) {
    FLASHJIT_ASSIGN(hint, canonical_hint(options.shape));
    const std::string key = fmt::format("{}\n{}\n{}", options.schedule, hint, spec);
    if (auto kernel = kernels_.find(key)) return kernel;
    if (options.capturing_stream) FLASHJIT_TRY(check_capture(options.capturing_stream));
    return kernels_
        .get(key,
             [&]() -> Result<std::shared_ptr<Kernel>> {
               auto kernel = make_chosen(spec, options.schedule, hint);
               log_line(log_file_, log_text(kernel, spec));
               return kernel;
             })
        .value;
  }

  Result<std::shared_ptr<Kernel>> make_chosen(std::string_view spec, const std::string& schedule, const std::string& hint) {
    if (!schedule.empty() || !tuned_) return make(spec, schedule, {});
    std::call_once(records_read_, [this] { records_ = stored_records(record_path_); });
    const TunedChoice choice = choose_schedule(spec, machine_, records_, hint);
    if (choice.schedule.empty()) return make(spec, {}, {});
    auto kernel = make(spec, choice.schedule, choice.note);
    // What another compiler made of the schedule may be no good with this one.
    const bool spoiled = kernel ? (*kernel)->facts().spill_bytes > 0 : kernel.error().kind == ErrorKind::Unsupported;
    return spoiled ? make(spec, {}, {}) : kernel;
  }

  const Machine machine_;
  const std::string log_file_;
  const bool tuned_;
  const std::string record_path_;
  std::once_flag records_read_;
  std::vector<TunedRecord> records_;
  SingleFlight<Kernel> kernels_;
};

class GpuEngine : public EngineBase {
 public:
  GpuEngine(const std::string& target, const EngineOptions& options, const EnvironmentSettings& settings, GpuContext gpu, const GpuInfo& info,
            const StoreOptions& store)
      : EngineBase(gpu_machine(target, info, gpu.driver->version()), options, settings), gpu_(std::move(gpu)), info_(info), store_(store) {}

 protected:
  Result<std::shared_ptr<Kernel>> make(std::string_view spec, const std::string& schedule, const std::string& note) override {
    FLASHJIT_ASSIGN(compiled, compile_spec(spec, target_, schedule, {.store = &store_, .sm_count = info_.sm_count}));
    if (!note.empty()) compiled.facts.notes.push_back(note);
    for (const std::string& of_store : store_.notes()) compiled.facts.notes.push_back(of_store);
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
  std::mutex counters_mutex_;
  std::shared_ptr<WorkCounters> counters_;
};

class HostEngine : public EngineBase {
 public:
  HostEngine(const std::string& target, const EngineOptions& options, const EnvironmentSettings& settings, HostBackend& backend, int threads)
      : EngineBase(host_machine(target, threads), options, settings), backend_(backend), pool_(std::make_shared<ThreadPool>(threads)) {}

 protected:
  Result<std::shared_ptr<Kernel>> make(std::string_view spec, const std::string& schedule, const std::string& note) override {
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
    if (!note.empty()) facts.notes.push_back(note);
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
  FLASHJIT_TRY(Nvrtc::open(settings.nvrtc));
  FLASHJIT_ASSIGN(gpu, GpuContext::open(driver, options.ordinal));
  const StoreOptions store{.directory = options.cache_dir.empty() ? settings.cache_dir : options.cache_dir,
                           .disk = options.disk_cache,
                           .max_bytes = options.cache_max_bytes};
  return std::shared_ptr<Engine>(std::make_shared<GpuEngine>(target, options, settings, gpu, info, store));
}

Result<std::shared_ptr<Engine>> create_host(const EngineOptions& options, const EnvironmentSettings& settings) {
  FLASHJIT_ASSIGN(backend, host_backend());
  std::string target = options.target.empty() || options.target == "host" ? backend->best_target() : options.target;
  FLASHJIT_ASSIGN(row, find_target(target));
  if (row->gpu) return invalid(fmt::format("target: {} is a GPU; create the engine with device=Gpu", target));
  const int threads = options.threads > 0 ? options.threads : settings.threads > 0 ? settings.threads : usable_cores();
  return std::shared_ptr<Engine>(std::make_shared<HostEngine>(target, options, settings, *backend, threads));
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
