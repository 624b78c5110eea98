// A call that is right, and what the checks of arguments say of it once something in it is changed.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "runtime/launch/arguments.h"

namespace flashjit {

inline constexpr std::int64_t kBatch = 2, kQ = 5, kK = 9;

// Addresses only: nothing is read or written through them.
inline void* address(std::uintptr_t at) { return reinterpret_cast<void*>(at); }

inline Plan plan_of(const std::string& spec, bool gpu = true) {
  auto parsed = parse_spec(spec);
  EXPECT_TRUE(parsed) << parsed.error().message << parsed.error().detail;
  Plan plan;
  if (parsed) plan.spec = *parsed;
  plan.target.gpu = gpu;
  if (gpu) plan.launches = {{.entry = "flashjit_forward", .grid = {.queries = 4, .heads = plan.spec.heads_q}}};
  return plan;
}

inline Arguments dense() {
  Arguments a;
  a.q = {address(0x1000), "bf16", {kBatch, kQ, 4, 64}, {}};
  a.k = {address(0x20000), "bf16", {kBatch, kK, 2, 64}, {}};
  a.v = {address(0x40000), "bf16", {kBatch, kK, 2, 64}, {}};
  a.o = {address(0x60000), "bf16", {kBatch, kQ, 4, 64}, {}};
  return a;
}

inline Arguments packed() {
  Arguments a;
  a.q = {address(0x1000), "bf16", {10, 4, 64}, {}};
  a.k = {address(0x20000), "bf16", {12, 2, 64}, {}};
  a.v = {address(0x40000), "bf16", {12, 2, 64}, {}};
  a.o = {address(0x60000), "bf16", {10, 4, 64}, {}};
  a.offsets_q = {address(0x80000), "i32", {4}, {}};
  a.offsets_k = {address(0x80100), "i32", {4}, {}};
  a.max_q_len = 6;
  return a;
}

inline Result<KernelParams> fill(const Plan& plan, const Arguments& arguments) {
  const ArgumentChecker checker(plan);
  CallArguments call;
  FLASHJIT_TRY(view(arguments, call));
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(checker.fill(call, params, sizes));
  return params;
}

inline const std::string kSpec = "fwd bf16 d=64 heads=4/2";

struct Case {
  const char* name;
  const char* spec;  // added to kSpec
  std::function<void(Arguments&)> change;
  const char* words;  // of the message
};

inline void expect_refused(const std::vector<Case>& cases, const std::function<Arguments()>& base) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Arguments a = base();
    c.change(a);
    const auto params = fill(plan_of(kSpec + c.spec), a);
    ASSERT_FALSE(params);
    EXPECT_EQ(params.error().kind, ErrorKind::Invalid);
    EXPECT_NE(params.error().message.find(c.words), std::string::npos) << params.error().message;
    EXPECT_EQ(params.error().message.find('\n'), std::string::npos);
  }
}

}  // namespace flashjit
