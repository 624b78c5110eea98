#include "tools/support/prepared.h"

#include <fmt/format.h>

#include "compiler/spec/target.h"
#include "runtime/launch/arguments.h"
#include "runtime/compile/compile.h"
#include "runtime/engine/environment.h"
#include "runtime/engine/host_library.h"
#include "runtime/launch/kernels.h"

namespace flashjit {
namespace {

class FusedPrepared : public Prepared {
 public:
  FusedPrepared(Session& session, ProblemData& data) : Prepared(session, data) {}
  Result<void> prepare(const std::string& spec, const std::string& schedule, const std::string& hint) {
    PrepareOptions options;
    options.schedule = schedule;
    options.shape = hint;
    FLASHJIT_ASSIGN(kernel, session_.engine().prepare(spec, options));
    kernel_ = std::move(kernel);
    facts_ = kernel_->facts();
    return place_data();
  }
  Result<void> start() override { return kernel_->run(arguments(), stream()); }

 private:
  std::shared_ptr<Kernel> kernel_;
};

class QuickGpu : public Prepared {
 public:
  QuickGpu(Session& session, ProblemData& data) : Prepared(session, data) {}
  Result<void> prepare(const std::string& spec, const std::string& schedule) {
    CompileOptions options;
    options.effort = Effort::Quick;
    FLASHJIT_ASSIGN(compiled, compile_spec(spec, session_.target(), schedule, options));
    FLASHJIT_ASSIGN(kernel, GpuKernel::load(session_.gpu(), session_.ordinal(), compiled, nullptr));
    kernel_ = std::move(kernel);
    facts_ = compiled.facts;
    return place_data();
  }
  Result<void> start() override { return kernel_->run(arguments(), stream()); }

 private:
  std::shared_ptr<GpuKernel> kernel_;
};

class NaiveHost : public Prepared {
 public:
  NaiveHost(Session& session, ProblemData& data) : Prepared(session, data) {}
  Result<void> prepare(const std::string& spec, const std::string& schedule) {
    FLASHJIT_ASSIGN(settings, read_environment());
    FLASHJIT_ASSIGN(backend, host_backend());
    FLASHJIT_ASSIGN(plan, plan_spec(spec, session_.target(), schedule));
    FLASHJIT_ASSIGN(kernel, backend->compile(plan, true));
    facts_.spec = print(plan.spec);
    facts_.target = session_.target();
    facts_.schedule = print(plan.schedule);
    scratch_bytes_ = 2 * sizeof(float) * data_.score_count();  // S and P
    const auto pool = std::make_shared<ThreadPool>(settings.threads > 0 ? settings.threads : usable_cores());
    runner_ = std::make_unique<HostRunner>(plan, facts_, std::move(kernel), pool);
    return place_data();
  }
  Result<void> start() override { return runner_->run(arguments(), nullptr); }

 private:
  std::unique_ptr<HostRunner> runner_;
};

class NaiveGpu : public Prepared {
 public:
  NaiveGpu(Session& session, ProblemData& data) : Prepared(session, data) {}

  Result<void> prepare(const std::string& spec, const std::string& schedule) {
    CompileOptions options;
    options.naive = true;
    FLASHJIT_ASSIGN(compiled, compile_spec(spec, session_.target(), schedule, options));
    facts_ = compiled.facts;
    FLASHJIT_TRY(place_data());
    const Arguments& given = arguments();
    CallArguments call;
    FLASHJIT_TRY(view(given, call));
    FLASHJIT_TRY(ArgumentChecker(compiled.plan).fill(call, params_));
    launch_ = naive_launch(compiled.plan.config, params_.batch, params_.q_len, params_.k_len);
    for (const std::int64_t blocks : launch_.grid) {
      if (blocks > SizeBound::kLargest) {
        return invalid(
            fmt::format("--against naive: {} blocks are above {}, the most one launch can have; use a smaller shape",
                        blocks, SizeBound::kLargest));
      }
    }
    FLASHJIT_ASSIGN(library, LoadedLibrary::load(session_.gpu(), compiled.binary->payload));
    library_ = std::move(library);
    for (int i = 0; i < 3; ++i) {
      FLASHJIT_ASSIGN(function,
                      library_->function(compiled.source.entries[static_cast<std::size_t>(i)], launch_.smem[i]));
      functions_[i] = function;
    }
    FLASHJIT_ASSIGN(scores, DeviceBuffer::allocate(session_.gpu(), static_cast<std::size_t>(launch_.scores_bytes)));
    FLASHJIT_ASSIGN(probabilities,
                    DeviceBuffer::allocate(session_.gpu(), static_cast<std::size_t>(launch_.probabilities_bytes)));
    scores_ = std::move(scores);
    probabilities_ = std::move(probabilities);
    scratch_bytes_ = static_cast<std::uint64_t>(launch_.scores_bytes + launch_.probabilities_bytes);
    return {};
  }

  Result<void> start() override {
    const GpuContext& gpu = session_.gpu();
    const CurrentContext current(gpu);
    FLASHJIT_TRY(current.status());
    void* scores = scores_.data();
    void* probabilities = probabilities_.data();
    void* arguments[] = {&params_, &scores, &probabilities};
    for (int i = 0; i < 3; ++i) {
      if (launch_.grid[i] == 0) continue;
      CuLaunchConfig config = {};
      config.grid_x = static_cast<unsigned>(launch_.grid[i]);
      config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
      config.block_x = kNaiveThreads;
      config.shared_bytes = static_cast<unsigned>(launch_.smem[i]);
      config.stream = session_.stream().get();
      FLASHJIT_TRY(
          gpu.driver->check(gpu.driver->api.launch(&config, functions_[i], arguments, nullptr), "cuLaunchKernelEx"));
    }
    return {};
  }

 private:
  KernelParams params_ = {};
  NaiveLaunch launch_;
  std::unique_ptr<LoadedLibrary> library_;
  CuFunction functions_[3] = {};
  DeviceBuffer scores_, probabilities_;
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

Result<std::unique_ptr<Prepared>> Prepared::create_naive(Session& session, const std::string& spec,
                                                         const std::string& schedule, ProblemData& data) {
  if (session.on_gpu()) return make<NaiveGpu>(session, data, spec, schedule);
  return make<NaiveHost>(session, data, spec, schedule);
}

Result<std::unique_ptr<Prepared>> Prepared::create_quick(Session& session, const std::string& spec,
                                                         const std::string& schedule, ProblemData& data) {
  if (session.on_gpu()) return make<QuickGpu>(session, data, spec, schedule);
  return invalid("--against quick: kernels of a processor are compiled in one way only; use a GPU");
}

Result<void> Prepared::place_data() {
  if (!session_.on_gpu()) {
    host_arguments_ = data_.host_arguments();
    return {};
  }
  FLASHJIT_ASSIGN(device, DeviceProblem::create(session_.gpu(), data_));
  device_ = std::move(device);
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
