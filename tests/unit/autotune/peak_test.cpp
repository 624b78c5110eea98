// The roof of a report: of the device that was used, and said where it is from.
#include "autotune/measure/peak.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/host/config.h"
#include "runtime/compile/request.h"
#include "runtime/engine/host_library.h"

namespace flashjit {
namespace {

Plan plan_for(const char* spec, const std::string& target) {
  auto plan = plan_spec(*Request::parse(spec, target, ""));
  EXPECT_TRUE(plan) << plan.error().message;
  return std::move(*plan);
}

TEST(Peak, OfAGpuIsThatOfTheTableForItsSms) {
  const Peak peak = peak_of(plan_for("fwd bf16 d=64", "sm_90a"), 114);
  EXPECT_NEAR(peak.tflops, 114 * 4096 * 1.75e9 * 1e-12, 1e-6);
  EXPECT_GT(peak.tbs, 1);
  EXPECT_NE(peak.how.find("114 SMs"), std::string::npos) << peak.how;
}

// No processor has more than two pipes at 7 GHz.
TEST(Peak, OfAProcessorIsThatOfTheThreadsInUse) {
  const auto library = host_library();
  if (!library) GTEST_SKIP() << "built without the host backend (LLVM 19)";
  struct Row {
    const char* spec;
    std::string target;
    int threads;
  };
  const std::string best = *(*library)->backend.best_target();
  for (const auto& [spec, target, threads] :
       {Row{"fwd fp32 d=64", "x86-64-v3", 1}, Row{"fwd fp16 d=64", best, 2}, Row{"fwd bf16 d=64", best, 1}}) {
    const Plan plan = plan_for(spec, target);
    const host::HostConfig config = host::config_of(plan);
    const double a_clock = config.product == host::Product::Amx ? 2 * 1024 : 2 * 2 * config.lanes * config.pack;
    const Peak peak = peak_of(plan, threads);
    EXPECT_GT(peak.tflops, 0) << spec << " " << target;
    EXPECT_LT(peak.tflops, threads * a_clock * 7e9 * 1e-12) << spec << " " << target << " " << peak.how;
    EXPECT_GT(peak.tbs, 0);
    EXPECT_NE(peak.how.find(fmt::format("measured on {} thread", threads)), std::string::npos) << peak.how;
  }
}

}  // namespace
}  // namespace flashjit
