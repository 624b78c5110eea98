// The engine of one GPU: its store, its bundles, and the kernels that were loaded for it.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "runtime/bundle/bundle.h"
#include "runtime/compile/compile.h"
#include "runtime/compile/nvrtc/compiler_process.h"
#include "runtime/compile/verify.h"
#include "runtime/engine/background.h"
#include "runtime/engine/create.h"
#include "runtime/engine/engine_base.h"
#include "runtime/engine/tiered_kernel.h"
#include "runtime/engine/with_stack.h"
#include "runtime/launch/composite/cascade_kernel.h"
#include "runtime/launch/kernels.h"
#include "runtime/launch/composite/narrowing_kernel.h"

namespace flashjit {
namespace {

class GpuEngine : public EngineBase {
 public:
  GpuEngine(const Target& target, PrepareLog log, GpuContext gpu, const GpuInfo& info, const StoreOptions& store,
            Bundles bundles, CompileOptions compile, std::string untested)
      : EngineBase(target, std::move(log)),
        gpu_(std::move(gpu)),
        info_(info),
        store_(store),
        bundles_(std::move(bundles)),
        compile_(std::move(compile)),
        untested_(std::move(untested)) {
    compile_.store = &store_;
    compile_.bundles = &bundles_;
  }
  ~GpuEngine() override { makers_.end(); }

 protected:
  Result<std::shared_ptr<Kernel>> make(const Wanted& wanted, const PrepareOptions& options,
                                       const CompileBounds& bounds) override {
    // A caller who wants the same bits at all times must not have them change when better code comes.
    const AttentionSpec& spec = wanted.request.spec;
    if (is_composite(wanted.request)) return make_composite(wanted, bounds);
    const bool soon = options.budget > options.budget.zero() && spec.numerics == Numerics::Fast;
    return soon ? make_within(wanted, options, bounds) : as_kernel(make_now(wanted, bounds));
  }

  Result<std::shared_ptr<Kernel>> make_composite(const Wanted& wanted, const CompileBounds& bounds) {
    FLASHJIT_ASSIGN(components, make_each(wanted, [&](const Wanted& one) { return make_now(one, bounds); }));
    if (narrows(wanted.request.spec)) {
      return std::shared_ptr<Kernel>(NarrowingKernel::create(
          info_.ordinal, wanted.request.spec, target_,
          {std::move(components[0]), std::move(components[1]), std::move(components[2]), std::move(components[3])}));
    }
    FLASHJIT_ASSIGN(
        kernel, CascadeKernel::create(gpu_, info_.ordinal, wanted.request.spec, target_,
                                      {std::move(components[0]), std::move(components[1]), std::move(components[2])}));
    return std::shared_ptr<Kernel>(std::move(kernel));
  }

  static Result<std::shared_ptr<Kernel>> as_kernel(const Promotion::Made& made) {
    return made ? Result<std::shared_ptr<Kernel>>(*made) : made.error();
  }

  Promotion::Made make_now(const Wanted& wanted, const CompileBounds& bounds) {
    CompileOptions options = compile_;
    options.bounds = bounds;
    options.verify = trial(wanted);
    FLASHJIT_ASSIGN(compiled, compile_spec(wanted.request, options));
    return load(std::move(compiled), wanted);
  }

  // Returns the function that tries a kernel. A kernel that cannot be tried is an error if the caller asked for the
  // trial.
  decltype(CompileOptions::verify) trial(const Wanted& wanted) {
    if (!wanted.verify && untested_.empty()) return {};
    return [this, asked = wanted.verify](const Compiled& compiled) -> Result<std::optional<std::string>> {
      FLASHJIT_ASSIGN(kernel, load_code(compiled));
      auto problem = verify_kernel(compiled.plan.spec, *kernel, &gpu_);
      if (problem) return std::optional(std::move(*problem));
      if (asked) return problem.error();
      return std::optional<std::string>();
    };
  }

  Promotion::Made load(Compiled compiled, const Wanted& wanted) {
    if (compiled.facts.source == "bundle") {
      ++bundle_hits_;
      if (wanted.verify)
        compiled.facts.notes.emplace_back("not verified: it comes from a bundle, and is taken as it is");
    } else if (!untested_.empty()) {
      compiled.facts.notes.push_back(
          is_verified(compiled.binary->facts)
              ? "verified, because " + untested_
              : fmt::format("not verified, although {}: it could not be tried; PrepareOptions::verify says why",
                            untested_));
    }
    for (const std::string& note : store_.notes()) compiled.facts.notes.push_back(note);
    if (const auto held = bundles_.check_target(target_.name); !held && !bundles_.empty())
      compiled.facts.notes.push_back(held.error().message);
    record(compiled.facts, wanted);
    FLASHJIT_ASSIGN(kernel, load_code(compiled));
    return std::shared_ptr<RunnableKernel>(std::move(kernel));
  }

  Result<std::shared_ptr<GpuKernel>> load_code(const Compiled& compiled) {
    std::shared_ptr<WorkCounters> counters;
    if (takes_items(compiled.plan)) {
      FLASHJIT_ASSIGN(shared, work_counters());
      counters = std::move(shared);
    }
    return GpuKernel::load(gpu_, info_.ordinal, compiled, std::move(counters));
  }

  // Returns the best code if it exists within the budget. Otherwise quick code answers until the best code replaces it.
  Result<std::shared_ptr<Kernel>> make_within(const Wanted& wanted, const PrepareOptions& options,
                                              const CompileBounds& bounds) {
    FLASHJIT_ASSIGN(stored, find_spec(wanted.request, compile_));
    if (stored.hit) return as_kernel(make_now(wanted, bounds));
    const auto promotion = std::make_shared<Promotion>();
    background_.add([this, promotion, wanted](const std::atomic<bool>& stop) {
      const CompileBounds until_stop(std::chrono::milliseconds(0), &stop);
      auto made = with_stack("prepare", [&] { return make_now(wanted, until_stop); });
      log_.log(as_kernel(made), wanted.written);
      if (promotion->deliver(std::move(made))) ++promoted_;
    });
    const auto soon = CompileBounds(options.budget, options.cancel);
    if (const auto best = promotion->wait(soon)) return as_kernel(*best);
    if (auto over = bounds.over()) return std::move(*over);
    CompileOptions quick = compile_;
    quick.bounds = bounds;
    quick.effort = Effort::Quick;
    quick.verify = trial(wanted);
    // A schedule that a record or the hint chose suits the best code. Quick code has a schedule of its own.
    Request request = wanted.request;
    request.pins = wanted.asked;
    auto compiled = compile_spec(request, quick);
    if (!compiled) {  // The best code is being compiled, so the caller waits for it.
      const auto best = promotion->wait(bounds);
      return best ? as_kernel(*best) : bounds.error();
    }
    const Plan quick_plan = compiled->plan;
    compiled->facts.notes.emplace_back(
        "quickly compiled, as the budget was over; the best code replaces it as soon as it is there");
    FLASHJIT_ASSIGN(loaded, load(std::move(*compiled), wanted));
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
  // The first kernel that needs counters has them made, because many engines never need any.
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
  const std::string untested_;  // The reason why all kernels are verified; empty if they are not.
  std::mutex counters_mutex_;
  std::shared_ptr<WorkCounters> counters_;
  std::atomic<std::int64_t> bundle_hits_ = 0, quick_ = 0, promoted_ = 0;
  // It is the last member, so that it ends before what its jobs use. Its single thread bounds memory: each compile
  // takes some 100 MB.
  Background background_{1};
};

// Returns the target with the number of SMs that the device has.
Result<Target> gpu_target(const std::string& asked, const GpuInfo& gpu) {
  const Target* own = target_for_compute_capability(gpu.major, gpu.minor);
  const auto as_here = [&](Target target) {
    if (gpu.sm_count > 0) target.sm_count = gpu.sm_count;
    return target;
  };
  if (asked.empty()) {
    if (own) return as_here(*own);
    return unsupported(
        fmt::format("{} has compute capability {}.{}, for which this build has no target; sm_80 is the oldest, and "
                    "`target` can name one by hand",
                    gpu.name, gpu.major, gpu.minor));
  }
  FLASHJIT_ASSIGN(row, find_target(asked));
  if (!row->gpu) return invalid(fmt::format("target: {} is a processor; create the engine with device=Host", asked));
  if (runs_on(*row, gpu.major, gpu.minor)) return as_here(*row);
  return invalid(fmt::format("target: code for {} does not run on {} (compute capability {}.{}){}", asked, gpu.name,
                             gpu.major, gpu.minor, own ? fmt::format("; leave it empty or use {}", own->name) : ""));
}

// The caller must learn of missing bundles and kernels here, before the first request.
Result<Bundles> open_bundles(const EngineOptions& options, const EnvironmentSettings& settings,
                             const std::string_view target, const TrustedList* trusted) {
  const bool are_given = !options.bundles.empty();
  auto opened = Bundles::open(are_given ? options.bundles : settings.bundles, trusted);
  if (!opened) {
    const std::string_view setting = are_given ? "bundles" : "FLASHJIT_BUNDLES";
    return Error{opened.error().kind, fmt::format("{}: {}", setting, opened.error().message), opened.error().detail};
  }
  Bundles& bundles = *opened;
  if (!options.required.empty()) {
    FLASHJIT_TRY(with_stack("required", [&] { return bundles.check_manifest(options.required, target); }));
  }
  if (!settings.jit && bundles.empty()) {
    return Error{
        ErrorKind::NotFound,
        fmt::format(
            "{}, and no bundle was given: kernels come from bundles alone then; name them in "
            "FLASHJIT_BUNDLES or EngineOptions::bundles (--bundle), and build them with: flashjit build MANIFEST --arch {} -o "
            "kernels.fjb",
            kNoJit, target),
        {}};
  }
  if (!settings.jit) FLASHJIT_TRY(bundles.check_target(target));
  return std::move(bundles);
}

// The error of a missing driver recommends the host target, which computes the same. It does not where kernels are to
// come from bundles, because a processor cannot run those.
Result<std::shared_ptr<const Driver>> open_driver(const EngineOptions& options, const EnvironmentSettings& settings) {
  auto driver = Driver::open();
  const bool of_bundles =
      !settings.jit || !options.bundles.empty() || !settings.bundles.empty() || !options.required.empty();
  if (driver || driver.error().kind != ErrorKind::NotFound || of_bundles) return driver;
  Error error = driver.error();
  error.message += ", or use the host target (Device::Host, --target host)";
  return error;
}

}  // namespace

Result<std::shared_ptr<Engine>> create_gpu_engine(const EngineOptions& options, const EnvironmentSettings& settings,
                                                  EngineFiles files) {
  FLASHJIT_ASSIGN(driver, open_driver(options, settings));
  FLASHJIT_ASSIGN(info, driver->device(options.ordinal));
  FLASHJIT_ASSIGN(target, gpu_target(options.target, info));
  FLASHJIT_ASSIGN(bundles, open_bundles(options, settings, target.name, files.trusted.get()));
  CompileOptions compile{.settings = settings, .override_dir = options.override_dir};
  if (options.isolate_compiler && settings.jit) {
    FLASHJIT_ASSIGN(program, find_compiler_program());
    compile.compiler_program = std::move(program);
  }
  int nvrtc_version = 0;
  if (bundles.empty()) {  // With bundles, NVRTC is opened only for kernels that they lack.
    FLASHJIT_ASSIGN(nvrtc, Nvrtc::open(settings.nvrtc, compile.compiler_program));
    nvrtc_version = 1000 * nvrtc->major() + 10 * nvrtc->minor();
  }
  FLASHJIT_ASSIGN(gpu, GpuContext::open(driver, options.ordinal));
  const StoreOptions store = store_options(options, settings, files.trusted);
  // Bundles, and sources that somebody has edited, were made for the schedule that the cost model chooses.
  const bool tuned = options.tuned && settings.jit && bundles.empty() && options.override_dir.empty();
  const auto engine = std::make_shared<GpuEngine>(target, std::move(files.log), gpu, info, store, std::move(bundles),
                                                  std::move(compile), why_untested(nvrtc_version, driver->version()));
  if (tuned) {
    engine->use_records(gpu_machine(engine->target(), info, driver->version()), store_path(options, settings), options,
                        settings);
  }
  return std::shared_ptr<Engine>(engine);
}

}  // namespace flashjit
