// Plans and kernels of what is asked for in words. A test is an edge: texts are parsed here, and the environment is
// read.
#pragma once

#include <string_view>
#include <utility>

#include "runtime/bundle/bundle.h"
#include "runtime/compile/compile.h"

namespace flashjit {

inline Result<Plan> plan_spec(std::string_view spec, std::string_view target, std::string_view pins, int sm_count = 0) {
  FLASHJIT_ASSIGN(request, Request::parse(spec, target, pins, sm_count));
  FLASHJIT_ASSIGN(plan, plan_spec(request));
  FLASHJIT_TRY(verify_plan(plan));
  return std::move(plan);
}

inline Result<Compiled> compile_spec(std::string_view spec, std::string_view target, std::string_view pins,
                                     CompileOptions options = {}) {
  FLASHJIT_ASSIGN(request, Request::parse(spec, target, pins));
  FLASHJIT_ASSIGN(settings, read_environment());
  options.settings = std::move(settings);
  return compile_spec(request, options);
}

}  // namespace flashjit
