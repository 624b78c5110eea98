// The parameter block of a call that is checked and not launched.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "compiler/plan.h"
#include "flashjit/flashjit.hpp"
#include "runtime/launch/arguments.h"
#include "runtime/launch/call.h"

namespace flashjit {

// `key_reach`: as Plan has it.
inline Result<KernelParams> fill(const std::string& spec, const Arguments& arguments, std::int64_t key_reach = 0) {
  FLASHJIT_ASSIGN(parsed, parse_spec(spec));
  Plan plan;
  plan.spec = parsed;
  plan.target.gpu = true;
  plan.key_reach = key_reach;
  plan.launches = {{.entry = "flashjit_forward", .grid = {.queries = 4, .heads = 4}}};
  CallArguments call;
  FLASHJIT_TRY(view(arguments, call));
  KernelParams params;
  CallSizes sizes;
  FLASHJIT_TRY(ArgumentChecker(plan).fill(call, params, sizes));
  return params;
}

inline void expect_refused(const std::string& spec, const Arguments& arguments, const std::string& begin) {
  const auto params = fill(spec, arguments);
  ASSERT_FALSE(params) << begin;
  EXPECT_EQ(params.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(params.error().message.rfind(begin, 0), 0u) << params.error().message << "\ninstead of " << begin;
}

}  // namespace flashjit
