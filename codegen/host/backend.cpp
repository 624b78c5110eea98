#include "codegen/host/backend.h"

#include <llvm/Config/llvm-config.h>

#include <algorithm>

#include "codegen/host/cpu.h"
#include "codegen/host/kernel.h"
#include "compiler/spec/fields/outputs.h"

namespace flashjit {
namespace {

// config_of() packs at most pairs of 16-bit elements, and knows only these types.
Result<void> check_plan(const Plan& plan) {
  if (plan.target.gpu) {
    return invalid("target: " + std::string(plan.target.name) + " is a GPU; the host backend compiles x86-64 targets");
  }
  auto known = [](Dtype dtype) { return dtype == Dtype::F16 || dtype == Dtype::BF16 || dtype == Dtype::F32; };
  const AttentionSpec& spec = plan.spec;
  const auto writes_known = [&](const OutField& out) { return quantizes(spec) || known(spec.*out.dtype); };
  if (!(known(spec.dtype) || has_scaled_queries(spec)) || !std::ranges::all_of(out_fields(spec), writes_known) ||
      (spec.kv_dtype != spec.dtype && !has_scaled_keys(spec))) {
    return unsupported(
        "dtype: the host backend computes fp16, bf16, fp32, e4m3 and e5m2, with K and V of Q's type or of 8 bits");
  }
  return {};
}

// A kernel that cannot run here is not compiled either, because the error should not come after the work.
Result<void> check_runs_here(const Plan& plan) {
  FLASHJIT_TRY(check_plan(plan));
  if (host::can_run(plan.target)) return {};
  FLASHJIT_ASSIGN(best, host::best_target());
  return unsupported("target: this processor or operating system lacks instructions of " +
                     std::string(plan.target.name) + "; the best target here is " + best);
}

class LlvmBackend final : public HostBackend {
 public:
  Result<std::vector<std::uint8_t>> compile(const Plan& plan, bool naive) override {
    FLASHJIT_TRY(check_runs_here(plan));
    if (naive && !plan.spec.grads.empty())
      return unsupported("grads: the textbook version has gradients of Q, K and V alone; leave grads out to compare");
    if (naive && indexes(plan.spec))
      return unsupported("index: it has no textbook version to compare with; leave the comparison out");
    if (naive && has_key_scales(plan.spec)) {
      return unsupported(
          "scales: the textbook version has one scale for all keys of a head; leave token_scales or scales out to compare");
    }
    return host::compile_kernel(plan, naive);
  }
  Result<std::unique_ptr<HostKernel>> link(const Plan& plan, bool naive,
                                           std::span<const std::uint8_t> object) override {
    FLASHJIT_TRY(check_runs_here(plan));
    return host::link_kernel(plan, naive, object);
  }
  Result<std::string> llvm_ir(const Plan& plan) override {
    FLASHJIT_TRY(check_plan(plan));
    return host::optimised_ir(plan);
  }
  std::string llvm_version() const override { return LLVM_VERSION_STRING; }
  Result<std::string> best_target() const override { return host::best_target(); }
};

}  // namespace
}  // namespace flashjit

extern "C" __attribute__((visibility("default"))) const char* flashjit_host_interface() {
  return flashjit::host_interface();
}

extern "C" __attribute__((visibility("default"))) flashjit::HostBackend* flashjit_host_backend() {
  static flashjit::LlvmBackend backend;
  return &backend;
}
