// The passes that turn a spec into a program without open choices. passes.cpp holds the list, in order.
#pragma once

#include <span>

#include "compiler/analysis/interval.h"
#include "compiler/program/ir.h"
#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"

namespace flashjit {

struct PassContext {
  const AttentionSpec& spec;
  const Target& target;
  const TileAnalysis& tiles;  // of spec.mask
  const Schedule& schedule;   // complete and legal: the judge has spoken, passes carry it out
};

struct Pass {
  std::string_view name;
  Result<Program> (*run)(Program program, const PassContext& context);
};

std::span<const Pass> passes();

// The passes, by the file they are in. The first gets an empty program.
Result<Program> build(Program program, const PassContext& context);  // passes_build.cpp
Result<Program> analyse_mask(Program program, const PassContext& context);
Result<Program> choose_tiling(Program program, const PassContext& context);  // passes_tile.cpp
Result<Program> assign_warps(Program program, const PassContext& context);
Result<Program> choose_softmax(Program program, const PassContext& context);
Result<Program> choose_grid(Program program, const PassContext& context);
Result<Program> place_buffers(Program program, const PassContext& context);  // passes_memory.cpp
Result<Program> pipeline_copies(Program program, const PassContext& context);
Result<Program> budget_registers(Program program, const PassContext& context);

}  // namespace flashjit
