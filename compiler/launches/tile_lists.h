// The launches that `tiles=list` in a schedule adds to a plan: they find which tiles a loop has to visit, where tensors of the
// mask decide it.
#pragma once

#include <string>

#include "compiler/analysis/tile_pairs.h"
#include "compiler/plan.h"

namespace flashjit {

// Returns what such a plan knows of two tiles. Nothing is known of a mask with very many operations: each tile is visited, and
// masked.
PairAnalysis pairs_of(const Plan& plan);

// The launches, and memory for lists of tiles along an axis, where the schedule has such.
void add_tile_lists(Plan& plan, Axis along);

// For `explain`; nothing where there are none.
std::string describe_tile_lists(const Plan& plan);

}  // namespace flashjit
