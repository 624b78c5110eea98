#include "tools/support/prepared.h"

#include <fmt/format.h>

#include "compiler/spec/target.h"
#include "runtime/launch/arguments.h"
#include "runtime/compile/compile.h"
#include "runtime/engine/host_library.h"
#include "runtime/launch/kernels.h"
#include "tools/support/engine_options.h"

namespace flashjit {
namespace {

class FusedPrepared : public Prepared {
 public:
  FusedPrepared(Session& session, ProblemData& data) : Prepared(session, data) {}
  Result<void> prepare(const std::string& spec, const std::string& schedule, const std::string& hint) {
    PrepareOptions options;
    options.schedule = schedule;
    options.shape = hint;
    options.workspace = true;
    FLASHJIT_ASSIGN(kernel, as_option(session_.engine().prepare(spec, options)));
    kernel_ = std::move(kernel);
    facts_ = kernel_->facts();
    return bind_data(*kernel_);
  }
  Result<void> start() override { return kernel_->run(arguments(), stream()); }

 private:
  std::shared_ptr<Kernel> kernel_;
};

class QuickGpu : public Prepared {
 public:
  QuickGpu(Session& session, ProblemData& data) : Prepared(session, data) {}
  Result<void> prepare(const Request& request) {
    CompileOptions options{.settings = session_.settings()};
    options.effort = Effort::Quick;
    FLASHJIT_ASSIGN(compiled, compile_spec(request, options));
    FLASHJIT_ASSIGN(kernel, GpuKernel::load(session_.gpu(), session_.ordinal(), compiled, nullptr));
    kernel_ = std::move(kernel);
    facts_ = compiled.facts;
    return bind_data(*kernel_);
  }
  Result<void> start() override { return static_cast<Kernel&>(*kernel_).run(arguments(), stream()); }

 private:
  std::shared_ptr<GpuKernel> kernel_;
};

class NaiveHost : public Prepared {
 public:
  NaiveHost(Session& session, ProblemData& data) : Prepared(session, data) {}
  Result<void> prepare(const Request& request) {
    const EnvironmentSettings& settings = session_.settings();
    FLASHJIT_ASSIGN(library, host_library());
    FLASHJIT_ASSIGN(plan, plan_spec(request));
    FLASHJIT_ASSIGN(object, library->backend.compile(plan, true));
    FLASHJIT_ASSIGN(kernel, library->backend.link(plan, true, object));
    facts_.spec = print(plan.spec);
    facts_.target = session_.target();
    facts_.schedule = print(plan.schedule);
    const auto pool = std::make_shared<ThreadPool>(settings.threads > 0 ? settings.threads : usable_cores());
    runner_ = std::make_unique<HostRunner>(plan, facts_, std::move(kernel), pool);
    FLASHJIT_TRY(bind_data(*runner_));
    // S and P, or P and dS, are memory that the backend allocates.
    scratch_bytes_ = 2 * sizeof(float) * data_.score_count();
    return {};
  }
  Result<void> start() override { return runner_->run(arguments(), nullptr); }

 private:
  std::unique_ptr<HostRunner> runner_;
};

template <class T>
Result<std::unique_ptr<Prepared>> make(Session& session, ProblemData& data, const auto&... what) {
  auto prepared = std::make_unique<T>(session, data);
  FLASHJIT_TRY(prepared->prepare(what...));
  return std::unique_ptr<Prepared>(std::move(prepared));
}

}  // namespace

Result<std::unique_ptr<Prepared>> Prepared::create(Session& session, const std::string& spec,
                                                   const std::string& schedule, const std::string& hint,
                                                   ProblemData& data) {
  return make<FusedPrepared>(session, data, spec, schedule, hint);
}

Result<std::unique_ptr<Prepared>> Prepared::create_naive(Session& session, const Request& request, ProblemData& data) {
  const char* const pins = is_backward(request.spec) ? "family=naive_backward" : "family=naive";
  if (session.on_gpu()) return make<FusedPrepared>(session, data, request.text, pins, "");
  return make<NaiveHost>(session, data, request);
}

Result<std::unique_ptr<Prepared>> Prepared::create_quick(Session& session, const Request& request, ProblemData& data) {
  if (session.on_gpu()) return make<QuickGpu>(session, data, request);
  return invalid("--against quick: kernels of a processor are compiled in one way only; use a GPU");
}

Result<void> Prepared::bind_data(const Kernel& kernel) {
  if (!session_.on_gpu()) {
    host_arguments_ = data_.host_arguments();
    return {};
  }
  FLASHJIT_ASSIGN(device, DeviceProblem::create(session_.gpu(), data_));
  device_ = std::move(device);
  FLASHJIT_ASSIGN(bytes, device_->make_workspace(session_.gpu(), kernel));
  scratch_bytes_ = bytes;
  return {};
}

Result<void> Prepared::run_checked_outputs() {
  data_.poison();
  if (device_) FLASHJIT_TRY(device_->poison(session_.stream()));
  FLASHJIT_TRY(start());
  if (!device_) return {};
  FLASHJIT_TRY(session_.stream().synchronize());
  return device_->download_outputs(data_);
}

}  // namespace flashjit
