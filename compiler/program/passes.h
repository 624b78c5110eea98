// The passes that turn a spec into a program without open choices: two that all families share, then those of the
// family (families/*/passes.cpp).
#pragma once

#include <span>
#include <string_view>

#include "compiler/program/config.h"
#include "compiler/program/ir.h"

namespace flashjit {

struct PassContext {
  const Problem& problem;
  const Schedule& schedule;    // complete and legal: the judge has spoken, passes carry it out
  const KernelConfig& config;  // the same, with what follows from it
};

struct Pass {
  std::string_view name;
  Result<Program> (*run)(Program program, const PassContext& context);
};

// Order: the mask decides the phases before anything is sized. The first gets an empty program.
std::span<const Pass> shared_passes();

Result<Program> build(Program program, const PassContext& context);
Result<Program> analyse_mask(Program program, const PassContext& context);

}  // namespace flashjit
