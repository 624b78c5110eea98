// An engine of this processor: kernels are compiled by LLVM where they run, and not stored.
#include <fmt/format.h>

#include <atomic>
#include <chrono>

#include "runtime/compile/compiler_pass.h"
#include "runtime/compile/facts.h"
#include "runtime/compile/kernel_key.h"
#include "runtime/engine/create.h"
#include "runtime/engine/engine_base.h"
#include "runtime/engine/host_library.h"
#include "runtime/launch/kernels.h"

namespace flashjit {
namespace {

class HostEngine : public EngineBase {
 public:
  HostEngine(const Target& target, PrepareLog log, HostBackend& backend, int threads)
      : EngineBase(target, std::move(log)), backend_(backend), pool_(std::make_shared<ThreadPool>(threads)) {}

 protected:
  Result<std::shared_ptr<Kernel>> make(const Wanted& wanted, const PrepareOptions&,
                                       const CompileBounds& bounds) override {
    const auto start = std::chrono::steady_clock::now();
    FLASHJIT_ASSIGN(plan, plan_spec(wanted.request));
    if (auto over = bounds.over()) return std::move(*over);  // LLVM, once at work, cannot be stopped
    const CompilerPass pass;
    FLASHJIT_TRY(pass.status());
    auto compiled = backend_.compile(plan, false);
    compile_us_.add(std::chrono::steady_clock::now() - start);
    ++(compiled ? compiles_ : failures_);
    if (!compiled) return compiled.error();
    auto& kernel = *compiled;
    Facts facts = facts_of(plan, host_key_of(plan, backend_.llvm_version()).digest, {},
                           static_cast<std::size_t>(kernel->code_bytes()), {.source = "compiled"});
    facts.threads = pool_->workers();
    facts.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    record(facts, wanted);
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

}  // namespace

Result<std::shared_ptr<Engine>> create_host_engine(const EngineOptions& options, const EnvironmentSettings& settings) {
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
  const auto engine = std::make_shared<HostEngine>(*row, std::move(log), *backend, threads);
  if (options.tuned)
    engine->use_records(host_machine(target, threads), store_path(options, settings), options, settings);
  return std::shared_ptr<Engine>(engine);
}

}  // namespace flashjit
