// Engine: one device, its store, and the kernels that were prepared for it.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>

#include "flashjit/flashjit.hpp"
#include "runtime/engine/background.h"
#include "runtime/bundle/bundle.h"
#include "runtime/compile/compile.h"
#include "runtime/compile/compiler_pass.h"
#include "runtime/compile/compiler_process.h"
#include "runtime/engine/counters.h"
#include "runtime/engine/environment.h"
#include "runtime/engine/host_library.h"
#include "runtime/engine/kernel_table.h"
#include "runtime/launch/kernels.h"
#include "runtime/engine/prepare_log.h"
#include "runtime/engine/tiered_kernel.h"
#include "runtime/tuned/choice.h"
#include "runtime/engine/without_exceptions.h"

namespace flashjit {
namespace {

// What is compiled for a prepare.
struct Pins {
  std::string schedule;                         // those of the caller, or of a choice that was made for it
  std::string asked;                            // those of the caller
  std::string note;                             // about the choice, for Facts::notes; may be empty
  std::shared_ptr<const AttentionSpec> parsed;  // what the text of the spec says; null: not read yet
};

class EngineBase : public Engine {
 public:
  EngineBase(std::string target, PrepareLog log) : target_(std::move(target)), log_(std::move(log)) {}
  std::string target() const override { return target_; }

  // Tuning records decide where nothing is pinned. Before the engine is handed out.
  void use_records(Machine machine, std::string store_path, const EngineOptions& options) {
    tuned_.emplace(std::move(machine), std::move(store_path), options);
  }

  // Found again is what was asked for with the same words: that is how often prepare is called that has nothing to do.
  Result<std::shared_ptr<Kernel>> prepare(std::string_view spec, const PrepareOptions& options) override {
    if (auto kernel =
            options.shape.empty() ? prepared_.find(spec, options.schedule) : prepared_.find(spec, words_of(options))) {
      memory_hits_.add();
      return kernel;
    }
    return without_exceptions("prepare", [&] { return make_once(spec, options); });
  }
  Counters counters() const override {
    Counters counters = made();
    counters.memory_hits += memory_hits_.sum();
    counters.waits += waits_;
    return counters;
  }

 protected:
  virtual Result<std::shared_ptr<Kernel>> make(std::string_view spec, const PrepareOptions& options, const Pins& pins,
                                               const CompileBounds& bounds) = 0;
  virtual Counters made() const = 0;  // what `make` did
  virtual Result<void> check_capture(void*) const { return {}; }
  void record(Facts& facts, const Pins& pins) const {
    if (!pins.note.empty()) facts.notes.push_back(pins.note);
    log_.record(facts, pins.asked);
  }
  const std::string target_;
  const PrepareLog log_;

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
          log_.log(kernel, spec);
          if (kernel) prepared_.add(spec, words_of(options), *kernel);
          return kernel;
        },
        bounds);
    if (outcome.how == SingleFlight<Kernel>::How::Memory) memory_hits_.add();
    if (outcome.how == SingleFlight<Kernel>::How::Waited) ++waits_;
    return std::move(outcome.value);
  }

  Result<std::shared_ptr<Kernel>> make_chosen(std::string_view spec, const PrepareOptions& options,
                                              const std::string& hint, const CompileBounds& bounds) {
    Pins asked{options.schedule, options.schedule, {}, nullptr};
    if (options.tune > options.tune.zero()) {
      if (!options.schedule.empty()) return invalid("tune: the schedule is pinned; leave one of the two out");
      if (!tuned_)
        return invalid("tune: this engine takes no records (tuned=false, bundles, override_dir or FLASHJIT_JIT=off)");
      FLASHJIT_TRY(tuned_->tune(spec, options));
    }
    if (!options.schedule.empty() || !tuned_) return make(spec, options, asked, bounds);
    auto parsed = parse_spec(spec);
    if (!parsed) return parsed.error();
    asked.parsed = std::make_shared<const AttentionSpec>(std::move(*parsed));
    TunedChoice choice = tuned_->choose(*asked.parsed, hint);
    if (choice.schedule.empty()) return make(spec, options, asked, bounds);
    auto kernel = make(spec, options,
                       {std::move(choice.schedule), options.schedule, std::move(choice.note), asked.parsed}, bounds);
    // What another compiler made of the schedule may be no good with this one.
    const bool spoiled = kernel ? (*kernel)->facts().spill_bytes > 0 : kernel.error().kind == ErrorKind::Unsupported;
    return spoiled ? make(spec, options, asked, bounds) : kernel;
  }

  std::optional<TunedSchedules> tuned_;  // none: no record decides
  SingleFlight<Kernel> making_;
  KernelTable prepared_;
  StripedCounter memory_hits_;
  std::atomic<std::int64_t> waits_ = 0;
};

class GpuEngine : public EngineBase {
 public:
  GpuEngine(std::string target, PrepareLog log, GpuContext gpu, const GpuInfo& info, const StoreOptions& store,
            Bundles bundles, CompileOptions compile)
      : EngineBase(std::move(target), std::move(log)),
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
    options.parsed = pins.parsed.get();
    FLASHJIT_ASSIGN(compiled, compile_spec(spec, target_, pins.schedule, options));
    return load(std::move(compiled), pins);
  }

  Promotion::Made load(Compiled compiled, const Pins& pins) {
    if (compiled.facts.source == "bundle") ++bundle_hits_;
    for (const std::string& note : store_.notes()) compiled.facts.notes.push_back(note);
    if (const auto held = bundles_.check_target(target_); !held && !bundles_.empty())
      compiled.facts.notes.push_back(held.error().message);
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
      auto made = without_exceptions("prepare", [&] { return make_now(spec, pins, until_stop); });
      log_.log(as_kernel(made), spec);
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
    compiled->facts.notes.push_back(
        "quickly compiled, as the budget was over; the best code replaces it as soon as it is there");
    FLASHJIT_ASSIGN(loaded, load(std::move(*compiled), pins));
    auto kernel = std::make_shared<TieredKernel>(quick_plan, std::move(loaded));
    ++quick_;
    if (promotion->answer_with(kernel)) ++promoted_;
    return std::shared_ptr<Kernel>(std::move(kernel));
  }

  Counters made() const override {
    Counters counters = store_.counters();
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
    return Error{
        ErrorKind::Capture,
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
  HostEngine(std::string target, PrepareLog log, HostBackend& backend, int threads)
      : EngineBase(std::move(target), std::move(log)),
        backend_(backend),
        pool_(std::make_shared<ThreadPool>(threads)) {}

 protected:
  Result<std::shared_ptr<Kernel>> make(std::string_view spec, const PrepareOptions&, const Pins& pins,
                                       const CompileBounds& bounds) override {
    const auto start = std::chrono::steady_clock::now();
    FLASHJIT_ASSIGN(
        plan, pins.parsed ? plan_spec(*pins.parsed, target_, pins.schedule) : plan_spec(spec, target_, pins.schedule));
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

Result<std::string> gpu_target(const std::string& asked, const GpuInfo& gpu) {
  const Target* own = target_for_compute_capability(gpu.major, gpu.minor);
  if (asked.empty()) {
    if (own) return std::string(own->name);
    return unsupported(
        fmt::format("{} has compute capability {}.{}, for which this build has no target; sm_80 is the oldest, and "
                    "`target` can name one by hand",
                    gpu.name, gpu.major, gpu.minor));
  }
  FLASHJIT_ASSIGN(row, find_target(asked));
  if (!row->gpu) return invalid(fmt::format("target: {} is a processor; create the engine with device=Host", asked));
  if (runs_on(*row, gpu.major, gpu.minor)) return asked;
  return invalid(fmt::format("target: code for {} does not run on {} (compute capability {}.{}){}", asked, gpu.name,
                             gpu.major, gpu.minor, own ? fmt::format("; leave it empty or use {}", own->name) : ""));
}

// What is missing must be known before the first request, not at it.
Result<Bundles> open_bundles(const EngineOptions& options, const EnvironmentSettings& settings,
                             const std::string& target, const TrustedList* trusted) {
  FLASHJIT_ASSIGN(bundles, Bundles::open(options.bundles, trusted));
  if (!options.required.empty()) FLASHJIT_TRY(bundles.check_manifest(options.required, target));
  if (!settings.jit && bundles.empty()) {
    return Error{
        ErrorKind::NotFound,
        "FLASHJIT_JIT=off, and no bundle was given: kernels come from bundles alone then; name them in EngineOptions::bundles "
        "(--bundle), and build them with: flashjit build MANIFEST --arch " +
            target + " -o kernels.fjb",
        {}};
  }
  if (!settings.jit) FLASHJIT_TRY(bundles.check_target(target));
  return std::move(bundles);
}

// Where kernels and tuning records are kept.
std::string store_path(const EngineOptions& options, const EnvironmentSettings& settings) {
  if (!options.disk_cache) return {};
  return options.cache_dir.empty() ? settings.cache_dir : options.cache_dir;
}

Result<std::shared_ptr<Engine>> create_gpu(const EngineOptions& options, const EnvironmentSettings& settings) {
  FLASHJIT_ASSIGN(driver, Driver::open());
  FLASHJIT_ASSIGN(info, driver->device(options.ordinal));
  FLASHJIT_ASSIGN(target, gpu_target(options.target, info));
  FLASHJIT_ASSIGN(trusted,
                  TrustedList::read(options.trusted_list.empty() ? settings.trusted_list : options.trusted_list));
  FLASHJIT_ASSIGN(bundles, open_bundles(options, settings, target, trusted.get()));
  CompileOptions compile{.override_dir = options.override_dir};
  if (options.isolate_compiler && settings.jit) {
    FLASHJIT_ASSIGN(program, find_compiler_program());
    compile.compiler_program = std::move(program);
  }
  if (bundles.empty())
    FLASHJIT_TRY(Nvrtc::open(settings.nvrtc, compile.compiler_program));  // else it is only needed for what they lack
  FLASHJIT_ASSIGN(log, PrepareLog::open(settings.log_file, options.record));
  FLASHJIT_ASSIGN(gpu, GpuContext::open(driver, options.ordinal));
  const StoreOptions store{.directory = store_path(options, settings),
                           .disk = options.disk_cache && settings.jit,
                           .max_bytes = options.cache_max_bytes,
                           .trusted = trusted};
  // A bundle, and sources that somebody edited, were made for the schedule that the cost model chooses.
  const bool tuned = options.tuned && settings.jit && bundles.empty() && options.override_dir.empty();
  const auto engine =
      std::make_shared<GpuEngine>(target, std::move(log), gpu, info, store, std::move(bundles), std::move(compile));
  if (tuned) engine->use_records(gpu_machine(target, info, driver->version()), store_path(options, settings), options);
  return std::shared_ptr<Engine>(engine);
}

Result<std::shared_ptr<Engine>> create_host(const EngineOptions& options, const EnvironmentSettings& settings) {
  if (!settings.jit) {
    return invalid(
        "device=Host with FLASHJIT_JIT=off: host kernels are always compiled where they run, and bundles hold none; unset one of the two");
  }
  if (!options.override_dir.empty())
    return invalid("override_dir: kernels of a processor have no source files; leave it empty");
  if (options.isolate_compiler)
    return invalid("isolate_compiler: kernels of a processor are not made by NVRTC; set it to false");
  FLASHJIT_ASSIGN(log, PrepareLog::open(settings.log_file, options.record));
  FLASHJIT_ASSIGN(backend, host_backend());
  std::string target = options.target.empty() || options.target == "host" ? backend->best_target() : options.target;
  FLASHJIT_ASSIGN(row, find_target(target));
  if (row->gpu) return invalid(fmt::format("target: {} is a GPU; create the engine with device=Gpu", target));
  const int threads = options.threads > 0 ? options.threads : settings.threads > 0 ? settings.threads : usable_cores();
  const auto engine = std::make_shared<HostEngine>(target, std::move(log), *backend, threads);
  if (options.tuned) engine->use_records(host_machine(target, threads), store_path(options, settings), options);
  return std::shared_ptr<Engine>(engine);
}

}  // namespace

Engine::~Engine() = default;

Result<std::shared_ptr<Engine>> Engine::create(const EngineOptions& options) {
  return without_exceptions("Engine::create", [&]() -> Result<std::shared_ptr<Engine>> {
    FLASHJIT_ASSIGN(settings, read_environment());
    if (options.threads < 0 || options.threads > kMaxThreads) {
      return invalid(fmt::format("threads: {} is outside 0..{}; 0 uses every core", options.threads, kMaxThreads));
    }
    return options.device == Device::Gpu ? create_gpu(options, settings) : create_host(options, settings);
  });
}

const char* version() { return FLASHJIT_VERSION; }

}  // namespace flashjit
