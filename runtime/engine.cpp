// Engine: one device, its store, and the kernels that were prepared for it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>

#include "compiler/candidates.h"
#include "flashjit/flashjit.hpp"
#include "runtime/background.h"
#include "runtime/bundle.h"
#include "runtime/compile.h"
#include "runtime/compiler_pass.h"
#include "runtime/compiler_process.h"
#include "runtime/counters.h"
#include "runtime/environment.h"
#include "runtime/host_library.h"
#include "runtime/kernel_table.h"
#include "runtime/kernels.h"
#include "runtime/tiered_kernel.h"
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
  const std::string& why = facts.layer.empty() ? facts.miss : facts.layer;
  std::string text = fmt::format("prepare {}: {}{} for {} in {:.1f} ms, schedule {}, {} registers, key {}\n", facts.spec, facts.source,
                                 why.empty() ? "" : fmt::format(" ({})", why), facts.target, facts.compile_ms, facts.schedule,
                                 facts.registers, facts.key.substr(0, 16));
  for (const std::string& note : facts.notes) text += fmt::format("prepare {}: note: {}\n", facts.spec, note);
  return text;
}

// No exception may reach the caller; what can be thrown here is lack of memory and the like. "out of memory" is short enough
// to need none itself.
template <class T, class Function>
Result<T> without_exceptions(const char* place, const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::Io, "out of memory", {}};
  } catch (const std::exception& exception) {
    return internal(fmt::format("{}: {}", place, exception.what()));
  }
}

// What is compiled for a prepare.
struct Pins {
  std::string schedule;  // those of the caller, or of a choice that was made for it
  std::string asked;     // those of the caller
  std::string note;      // about the choice, for Facts::notes; may be empty
};

class EngineBase : public Engine {
 public:
  EngineBase(std::string target, std::string log_file, std::optional<Recorder> recorder)
      : target_(std::move(target)), log_file_(std::move(log_file)), recorder_(std::move(recorder)) {}
  std::string target() const override { return target_; }

  // Tuning records decide where nothing is pinned. Before the engine is handed out.
  void use_records(Machine machine, std::string store_path, const EngineOptions& options) {
    machine_ = std::move(machine);
    record_path_ = std::move(store_path);
    options_ = options;
  }

  // Found again is what was asked for with the same words: that is how often prepare is called that has nothing to do.
  Result<std::shared_ptr<Kernel>> prepare(std::string_view spec, const PrepareOptions& options) override {
    if (auto kernel = options.shape.empty() ? prepared_.find(spec, options.schedule) : prepared_.find(spec, words_of(options))) {
      memory_hits_.add();
      return kernel;
    }
    return without_exceptions<std::shared_ptr<Kernel>>("prepare", [&] { return make_once(spec, options); });
  }
  Counters counters() const override {
    Counters counters = made();
    counters.memory_hits += memory_hits_.sum();
    counters.waits += waits_;
    return counters;
  }

 protected:
  void log(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) const { log_line(log_file_, log_text(kernel, spec)); }
  virtual Result<std::shared_ptr<Kernel>> make(std::string_view spec, const PrepareOptions& options, const Pins& pins,
                                               const CompileBounds& bounds) = 0;
  virtual Counters made() const = 0;  // what `make` did
  virtual Result<void> check_capture(void*) const { return {}; }
  // That a line cannot be written must not fail what was asked for.
  void record(Facts& facts, const Pins& pins) const {
    if (!pins.note.empty()) facts.notes.push_back(pins.note);
    if (!recorder_) return;
    const auto key = bundle_key(facts.spec, target_, pins.asked);
    if (!key) return;
    if (const auto done = recorder_->add({.spec = key->spec, .schedule = key->pins}); !done) {
      facts.notes.push_back("not recorded: " + done.error().message);
    }
  }
  const std::string target_;

 private:
  static std::string words_of(const PrepareOptions& options) {
    return options.shape.empty() ? options.schedule : fmt::format("{}\n{}", options.schedule, options.shape);
  }

  Result<std::shared_ptr<Kernel>> make_once(std::string_view spec, const PrepareOptions& options) {
    if (options.capturing_stream) FLASHJIT_TRY(check_capture(options.capturing_stream));
    FLASHJIT_ASSIGN(hint, canonical_hint(options.shape));
    const CompileBounds bounds(options.timeout, options.cancel);
    if (auto over = bounds.over()) return std::move(*over);  // called off before it began, wherever the kernel may be
    auto outcome = making_.get(
        fmt::format("{}\n{}\n{}", options.schedule, hint, spec),
        [&]() -> Result<std::shared_ptr<Kernel>> {
          auto kernel = make_chosen(spec, options, hint, bounds);
          log(kernel, spec);
          if (kernel) prepared_.add(spec, words_of(options), *kernel);
          return kernel;
        },
        bounds);
    if (outcome.how == SingleFlight<Kernel>::How::Memory) memory_hits_.add();
    if (outcome.how == SingleFlight<Kernel>::How::Waited) ++waits_;
    return std::move(outcome.value);
  }

  Result<std::shared_ptr<Kernel>> make_chosen(std::string_view spec, const PrepareOptions& options, const std::string& hint,
                                              const CompileBounds& bounds) {
    const Pins asked{options.schedule, options.schedule, {}};
    if (options.tune > options.tune.zero()) FLASHJIT_TRY(tune_first(spec, options));
    if (!options.schedule.empty() || !machine_) return make(spec, options, asked, bounds);
    TunedChoice choice = choose_schedule(spec, *machine_, *records(), hint);
    if (choice.schedule.empty()) return make(spec, options, asked, bounds);
    auto kernel = make(spec, options, {std::move(choice.schedule), options.schedule, std::move(choice.note)}, bounds);
    // What another compiler made of the schedule may be no good with this one.
    const bool spoiled = kernel ? (*kernel)->facts().spill_bytes > 0 : kernel.error().kind == ErrorKind::Unsupported;
    return spoiled ? make(spec, options, asked, bounds) : kernel;
  }

  // Makes a record, unless there is one of this class.
  Result<void> tune_first(std::string_view text, const PrepareOptions& options) {
    if (!options.schedule.empty()) return invalid("tune: the schedule is pinned; leave one of the two out");
    if (!machine_) return invalid("tune: this engine takes no records (tuned=false, bundles, override_dir or FLASHJIT_JIT=off)");
    if (!tuner()) return unsupported("tune: this program was linked without what measures schedules; libflashjit.so has it");
    FLASHJIT_ASSIGN(spec, parse_spec(text));
    FLASHJIT_ASSIGN(target, find_target(target_));
    Shape shape = reference_shape(spec);
    if (!options.shape.empty()) {
      FLASHJIT_ASSIGN(hinted, parse_shape_hint(options.shape));
      shape = hinted;
    }
    const std::string canonical = print(spec);
    const bool known = std::ranges::any_of(*records(), [&](const TunedRecord& r) {
      return r.spec == canonical && r.machine.target == machine_->target && r.machine.device == machine_->device &&
             r.machine.units == machine_->units && rounded(r.shape) == rounded(shape) && is_legal(spec, *target, r.schedule);
    });
    if (known) return {};
    FLASHJIT_ASSIGN(record, tuner()({canonical, print(shape), options_, std::chrono::duration<double>(options.tune).count()}));
    // That it cannot be kept for the next process must not fail what was asked for.
    if (!record_path_.empty()) [[maybe_unused]] const auto kept = store_records(record_path_, {record});
    const auto all = std::make_shared<const std::vector<TunedRecord>>(merge(*records(), {record}));
    const std::lock_guard lock(records_mutex_);
    records_ = all;
    return {};
  }

  std::shared_ptr<const std::vector<TunedRecord>> records() {
    const std::lock_guard lock(records_mutex_);
    if (!records_) records_ = std::make_shared<const std::vector<TunedRecord>>(stored_records(record_path_));
    return records_;
  }

  std::optional<Machine> machine_;  // none: no record decides
  std::string record_path_;
  EngineOptions options_;
  std::mutex records_mutex_;
  std::shared_ptr<const std::vector<TunedRecord>> records_;  // null: not read yet
  const std::string log_file_;
  const std::optional<Recorder> recorder_;
  SingleFlight<Kernel> making_;
  KernelTable prepared_;
  StripedCounter memory_hits_;
  std::atomic<std::int64_t> waits_ = 0;
};

Counters counters_of(const StoreCounters& store) {
  Counters counters;
  counters.memory_hits = store.memory_hits;
  counters.disk_hits = store.disk_hits;
  counters.layer_hits = store.layer_hits;
  counters.misses = store.misses;
  counters.compiles = store.made;
  counters.compile_failures = store.failures;
  counters.waits = store.waits;
  counters.private_compiles = store.private_makes;
  counters.bad_entries = store.bad_entries;
  counters.not_persisted = store.not_persisted;
  counters.evictions = store.evictions;
  counters.bytes_read = store.bytes_read;
  counters.bytes_written = store.bytes_written;
  counters.lookup_us = store.lookup_us;
  counters.compile_us = store.make_us;
  return counters;
}

class GpuEngine : public EngineBase {
 public:
  GpuEngine(std::string target, const EnvironmentSettings& settings, std::optional<Recorder> recorder, GpuContext gpu, const GpuInfo& info,
            const StoreOptions& store, Bundles bundles, CompileOptions compile)
      : EngineBase(std::move(target), settings.log_file, std::move(recorder)),
        gpu_(std::move(gpu)),
        info_(info),
        store_(store),
        bundles_(std::move(bundles)),
        compile_(std::move(compile)) {
    compile_.store = &store_;
    compile_.sm_count = info_.sm_count;
    compile_.bundles = &bundles_;
  }

 protected:
  Result<std::shared_ptr<Kernel>> make(std::string_view spec, const PrepareOptions& options, const Pins& pins,
                                       const CompileBounds& bounds) override {
    if (options.budget > options.budget.zero()) return make_within(std::string(spec), options, pins, bounds);
    return as_kernel(make_now(spec, pins, bounds));
  }

  static Result<std::shared_ptr<Kernel>> as_kernel(const Promotion::Made& made) {
    return made ? Result<std::shared_ptr<Kernel>>(*made) : made.error();
  }

  Promotion::Made make_now(std::string_view spec, const Pins& pins, const CompileBounds& bounds) {
    CompileOptions options = compile_;
    options.bounds = bounds;
    FLASHJIT_ASSIGN(compiled, compile_spec(spec, target_, pins.schedule, options));
    return load(std::move(compiled), pins);
  }

  Promotion::Made load(Compiled compiled, const Pins& pins) {
    if (compiled.facts.source == "bundle") ++bundle_hits_;
    for (const std::string& note : store_.notes()) compiled.facts.notes.push_back(note);
    if (const auto held = bundles_.check_target(target_); !held && !bundles_.empty()) compiled.facts.notes.push_back(held.error().message);
    record(compiled.facts, pins);
    std::shared_ptr<WorkCounters> counters;
    if (takes_items(compiled.plan.config)) {
      FLASHJIT_ASSIGN(shared, work_counters());
      counters = std::move(shared);
    }
    FLASHJIT_ASSIGN(kernel, GpuKernel::load(gpu_, info_.ordinal, compiled, std::move(counters)));
    return std::shared_ptr<RunnableKernel>(std::move(kernel));
  }

  // The best code if it is there within the budget, or else quick code that is replaced later.
  Result<std::shared_ptr<Kernel>> make_within(const std::string& spec, const PrepareOptions& options, const Pins& pins,
                                              const CompileBounds& bounds) {
    FLASHJIT_ASSIGN(plan, plan_spec(spec, target_, pins.schedule, info_.sm_count));
    // Whoever asks for the same bits at all times cannot have them change on the way.
    if (plan.spec.numerics != Numerics::Fast) return as_kernel(make_now(spec, pins, bounds));
    FLASHJIT_ASSIGN(stored, find_spec(spec, target_, pins.schedule, compile_));
    if (stored.hit) return as_kernel(make_now(spec, pins, bounds));
    const auto promotion = std::make_shared<Promotion>();
    background_.add([this, promotion, spec, pins](const std::atomic<bool>& stop) {
      const CompileBounds until_stop(std::chrono::milliseconds(0), &stop);
      auto made = without_exceptions<std::shared_ptr<RunnableKernel>>("prepare", [&] { return make_now(spec, pins, until_stop); });
      log(as_kernel(made), spec);
      if (promotion->deliver(std::move(made))) ++promoted_;
    });
    const auto soon = CompileBounds(options.budget, options.cancel);
    if (const auto best = promotion->wait(soon)) return as_kernel(*best);
    if (auto over = bounds.over()) return std::move(*over);
    CompileOptions quick = compile_;
    quick.bounds = bounds;
    quick.effort = Effort::Quick;
    // A schedule that a record or the hint chose is for the best code: quick code has its own.
    auto compiled = compile_spec(spec, target_, pins.asked, quick);
    if (!compiled) {  // the best code is on its way, and takes as long as it takes
      const auto best = promotion->wait(bounds);
      return best ? as_kernel(*best) : bounds.error();
    }
    const Plan quick_plan = compiled->plan;
    compiled->facts.notes.push_back("quickly compiled, as the budget was over; the best code replaces it as soon as it is there");
    FLASHJIT_ASSIGN(loaded, load(std::move(*compiled), pins));
    auto kernel = std::make_shared<TieredKernel>(quick_plan, std::move(loaded));
    ++quick_;
    if (promotion->answer_with(kernel)) ++promoted_;
    return std::shared_ptr<Kernel>(std::move(kernel));
  }

  Counters made() const override {
    Counters counters = counters_of(store_.counters());
    counters.bundle_hits = bundle_hits_;
    counters.quick_kernels = quick_;
    counters.replaced_kernels = promoted_;
    return counters;
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
  CompileOptions compile_;
  std::mutex counters_mutex_;
  std::shared_ptr<WorkCounters> counters_;
  std::atomic<std::int64_t> bundle_hits_ = 0, quick_ = 0, promoted_ = 0;
  Background background_;  // last: it ends before what its jobs use
};

class HostEngine : public EngineBase {
 public:
  HostEngine(std::string target, const EnvironmentSettings& settings, std::optional<Recorder> recorder, HostBackend& backend, int threads)
      : EngineBase(std::move(target), settings.log_file, std::move(recorder)),
        backend_(backend),
        pool_(std::make_shared<ThreadPool>(threads)) {}

 protected:
  Result<std::shared_ptr<Kernel>> make(std::string_view spec, const PrepareOptions&, const Pins& pins, const CompileBounds& bounds) override {
    const auto start = std::chrono::steady_clock::now();
    FLASHJIT_ASSIGN(plan, plan_spec(spec, target_, pins.schedule));
    if (auto over = bounds.over()) return std::move(*over);  // LLVM, once at work, cannot be stopped
    const CompilerPass pass;
    FLASHJIT_TRY(pass.status());
    auto compiled = backend_.compile(plan, false);
    compile_us_.add(std::chrono::steady_clock::now() - start);
    ++(compiled ? compiles_ : failures_);
    if (!compiled) return compiled.error();
    auto& kernel = *compiled;
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
    record(facts, pins);
    return std::shared_ptr<Kernel>(std::make_shared<HostRunner>(plan, std::move(facts), std::move(kernel), pool_));
  }

  Counters made() const override {
    Counters counters;
    counters.compiles = compiles_;
    counters.compile_failures = failures_;
    counters.misses = counters.compiles + counters.compile_failures;
    counters.compile_us = compile_us_.read();
    return counters;
  }

 private:
  std::atomic<std::int64_t> compiles_ = 0, failures_ = 0;
  TimeCounter compile_us_;
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

// Where tuning records are looked for, besides those that came with the library.
std::string record_path(const EngineOptions& options, const EnvironmentSettings& settings) {
  if (!options.disk_cache) return {};
  return options.cache_dir.empty() ? settings.cache_dir : options.cache_dir;
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
  CompileOptions compile{.override_dir = options.override_dir};
  if (options.isolate_compiler && settings.jit) {
    FLASHJIT_ASSIGN(program, find_compiler_program());
    compile.compiler_program = std::move(program);
  }
  if (bundles.empty()) FLASHJIT_TRY(Nvrtc::open(settings.nvrtc, compile.compiler_program));  // else it is only needed for what they lack
  FLASHJIT_ASSIGN(recorder, open_recorder(options));
  FLASHJIT_ASSIGN(gpu, GpuContext::open(driver, options.ordinal));
  const StoreOptions store{.directory = options.cache_dir.empty() ? settings.cache_dir : options.cache_dir,
                           .disk = options.disk_cache && settings.jit,
                           .max_bytes = options.cache_max_bytes};
  // A bundle, and sources that somebody edited, were made for the schedule that the cost model chooses.
  const bool tuned = options.tuned && settings.jit && bundles.empty() && options.override_dir.empty();
  const auto engine =
      std::make_shared<GpuEngine>(target, settings, std::move(recorder), gpu, info, store, std::move(bundles), std::move(compile));
  if (tuned) engine->use_records(gpu_machine(target, info, driver->version()), record_path(options, settings), options);
  return std::shared_ptr<Engine>(engine);
}

Result<std::shared_ptr<Engine>> create_host(const EngineOptions& options, const EnvironmentSettings& settings) {
  if (!settings.jit) {
    return invalid("device=Host with FLASHJIT_JIT=off: host kernels are always compiled where they run, and bundles hold none; unset one of the two");
  }
  if (!options.override_dir.empty()) return invalid("override_dir: kernels of a processor have no source files; leave it empty");
  if (options.isolate_compiler) return invalid("isolate_compiler: kernels of a processor are not made by NVRTC; set it to false");
  FLASHJIT_ASSIGN(recorder, open_recorder(options));
  FLASHJIT_ASSIGN(backend, host_backend());
  std::string target = options.target.empty() || options.target == "host" ? backend->best_target() : options.target;
  FLASHJIT_ASSIGN(row, find_target(target));
  if (row->gpu) return invalid(fmt::format("target: {} is a GPU; create the engine with device=Gpu", target));
  const int threads = options.threads > 0 ? options.threads : settings.threads > 0 ? settings.threads : usable_cores();
  const auto engine = std::make_shared<HostEngine>(target, settings, std::move(recorder), *backend, threads);
  if (options.tuned) engine->use_records(host_machine(target, threads), record_path(options, settings), options);
  return std::shared_ptr<Engine>(engine);
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
