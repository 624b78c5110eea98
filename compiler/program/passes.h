// The passes that turn a spec into a program without open choices: two that all families share, and then those of the
// family (families/*/passes.cpp).
#pragma once

#include <span>
#include <string_view>

#include "compiler/program/config.h"
#include "compiler/program/ir.h"

namespace flashjit {

struct PassContext {
  const Problem& problem;
  const Schedule& schedule;    // It is complete and legal: passes only carry it out.
  const KernelConfig& config;  // It has the schedule's fields, and what follows from them.
};

struct Pass {
  std::string_view name;
  Result<Program> (*run)(Program program, const PassContext& context);
};

// The order matters: the mask decides the phases before anything is sized. The first pass gets an empty program.
std::span<const Pass> shared_passes();

Result<Program> build(Program program, const PassContext& context);
Result<Program> analyse_mask(Program program, const PassContext& context);

}  // namespace flashjit
