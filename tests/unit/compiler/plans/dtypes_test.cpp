// Dtypes that nothing computes: what the message offers in their place.
#include <gtest/gtest.h>

#include <utility>

#include "tests/requests.h"

namespace flashjit {
namespace {

TEST(Dtypes, AMessageOffersThoseOfTheOperation) {
  const std::pair<const char*, const char*> rows[] = {
      {"fwd fp32 d=64", "sm_90a computes fp16, bf16, e4m3 and e5m2; use bf16"},
      {"bwd fp32 d=64", "sm_90a computes fp16 and bf16; use bf16"},
      {"index fp32 d=64", "sm_90a computes fp16, bf16, e4m3 and e5m2; use bf16"},
      {"bwd e4m3 d=64", "e4m3 has no kernel of bwd in this build; use fp16, bf16 or, on processors, fp32"},
      {"merge e4m3 d=64", "e4m3 has no kernel of merge in this build; use fp16, bf16 or fp32"},
      {"fwd bf16 d=64 out=e4m3", "out: e4m3 has no kernel in this build; use one of fp16, bf16, fp32 for o"},
  };
  for (const auto& [spec, message] : rows) {
    const auto plan = plan_spec(spec, "sm_90a", "");
    ASSERT_FALSE(plan) << spec;
    EXPECT_NE(plan.error().message.find(message), std::string::npos) << spec << ": " << plan.error().message;
  }
}

}  // namespace
}  // namespace flashjit
