// The engine of this processor: its store, and the kernels that LLVM compiled or linked for it.
#include <fmt/format.h>

#include <chrono>

#include "runtime/compile/compile_host.h"
#include "runtime/compile/compiler_pass.h"
#include "runtime/compile/verify.h"
#include "runtime/engine/create.h"
#include "runtime/engine/engine_base.h"
#include "runtime/launch/kernels.h"
#include "runtime/launch/composite/narrowing_kernel.h"

namespace flashjit {
namespace {

class HostEngine : public EngineBase {
 public:
  HostEngine(const Target& target, PrepareLog log, const HostLibrary& library, const EnvironmentSettings& settings,
             const StoreOptions& store, int threads)
      : EngineBase(target, std::move(log)),
        settings_(settings),
        library_(library),
        store_(store),
        pool_(std::make_shared<ThreadPool>(threads)) {}
  ~HostEngine() override { makers_.end(); }

 protected:
  Result<std::shared_ptr<Kernel>> make(const Wanted& wanted, const PrepareOptions&,
                                       const CompileBounds& bounds) override {
    if (is_composite(wanted.request)) return make_composite(wanted, bounds);
    FLASHJIT_ASSIGN(kernel, make_one(wanted, bounds));
    return std::shared_ptr<Kernel>(std::move(kernel));
  }

  Counters made() const override { return store_.counters(); }

 private:
  Result<std::shared_ptr<Kernel>> make_composite(const Wanted& wanted, const CompileBounds& bounds) {
    FLASHJIT_ASSIGN(components, make_each(wanted, [&](const Wanted& one) { return make_one(one, bounds); }));
    return std::shared_ptr<Kernel>(NarrowingKernel::create(
        0, wanted.request.spec, wanted.request.target,
        {std::move(components[0]), std::move(components[1]), std::move(components[2]), std::move(components[3])}));
  }

  Result<std::shared_ptr<RunnableKernel>> make_one(const Wanted& wanted, const CompileBounds& bounds) {
    const auto start = std::chrono::steady_clock::now();
    CompileOptions options{.settings = settings_, .store = &store_, .bounds = bounds};
    if (wanted.verify) {
      options.verify = [this](const Compiled& made) -> Result<std::optional<std::string>> {
        FLASHJIT_ASSIGN(code, link(made));
        HostRunner kernel(made.plan, made.facts, std::move(code), pool_);
        FLASHJIT_ASSIGN(problem, verify_kernel(made.plan.spec, kernel, nullptr));
        return std::optional(std::move(problem));
      };
    }
    FLASHJIT_ASSIGN(compiled, compile_host_spec(wanted.request, library_, options));
    auto linked = link(compiled);
    if (!linked && compiled.facts.source != "compiled") {
      // The bytes were stored in this form, so they were never a kernel. The kernel can still be compiled without the
      // store.
      options.store = nullptr;
      const std::string why = linked.error().message;
      FLASHJIT_ASSIGN(again, compile_host_spec(wanted.request, library_, options));
      compiled = std::move(again);
      compiled.facts.notes.push_back("compiled although it is stored, as that cannot be linked: " + why);
      linked = link(compiled);
    }
    if (!linked) return linked.error();
    Facts& facts = compiled.facts;
    for (const std::string& note : store_.notes()) facts.notes.push_back(note);
    facts.threads = pool_->workers();
    facts.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    record(facts, wanted);
    return std::shared_ptr<RunnableKernel>(
        std::make_shared<HostRunner>(compiled.plan, std::move(facts), std::move(*linked), pool_));
  }

  Result<std::unique_ptr<HostKernel>> link(const Compiled& compiled) {
    const CompilerPass pass;
    FLASHJIT_TRY(pass.status());
    return library_.backend.link(compiled.plan, false, compiled.binary->payload);
  }

  const EnvironmentSettings settings_;
  const HostLibrary& library_;
  KernelStore store_;
  std::shared_ptr<ThreadPool> pool_;
};

}  // namespace

Result<std::shared_ptr<Engine>> create_host_engine(const EngineOptions& options, const EnvironmentSettings& settings,
                                                   EngineFiles files) {
  FLASHJIT_TRY(check_host_jit(settings));
  if (!options.override_dir.empty())
    return invalid("override_dir: kernels of a processor have no source files; leave it out");
  if (!options.bundles.empty()) return invalid("bundles: they hold kernels of GPUs, not of processors; leave it out");
  if (!options.required.empty())
    return invalid("required: it is asked of bundles, which hold no kernels of processors; leave it out");
  if (options.ordinal != 0)
    return invalid(fmt::format("ordinal: {}, and there is one engine of processors; leave it 0", options.ordinal));
  if (options.isolate_compiler)
    return invalid("isolate_compiler: kernels of a processor are not made by NVRTC; set it to false");
  FLASHJIT_ASSIGN(library, host_library());
  std::string target = options.target;
  if (target.empty() || target == "host") {
    FLASHJIT_ASSIGN(best, library->backend.best_target());
    target = best;
  }
  FLASHJIT_ASSIGN(row, find_target(target));
  if (row->gpu) return invalid(fmt::format("target: {} is a GPU; create the engine with device=Gpu", target));
  const int threads = host_threads(options, settings);
  const auto engine = std::make_shared<HostEngine>(*row, std::move(files.log), *library, settings,
                                                   store_options(options, settings, files.trusted), threads);
  if (options.tuned)
    engine->use_records(host_machine(target, threads), store_path(options, settings), options, settings);
  return std::shared_ptr<Engine>(engine);
}

}  // namespace flashjit
