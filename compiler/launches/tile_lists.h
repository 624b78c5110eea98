// The launches that `tiles=list` in a schedule adds to a plan. They find the tiles that a loop has to visit, where
// tensors of the mask decide it.
#pragma once

#include <string>

#include "compiler/analysis/tile_pairs.h"
#include "compiler/plan.h"

namespace flashjit {

// Returns the analysis of pairs of tiles of such a plan. For a mask with very many operations it knows nothing, so that
// each tile is visited, and masked.
PairAnalysis pairs_of(const Plan& plan);

// Adds the launches, and memory for lists of tiles along an axis, if the schedule has lists.
void add_tile_lists(Plan& plan, Axis along);

// Returns the text of `explain`; empty: there are no such launches.
std::string describe_tile_lists(const Plan& plan);

}  // namespace flashjit
