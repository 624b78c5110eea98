// Emits tile_pairs.gen.cuh: the functions of two tiles that the launches for lists of tiles call
// (compiler/analysis/tile_pairs.h).
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

// Returns an empty text if a plan has no such launches.
std::string emit_tile_pairs(const Plan& plan);

}  // namespace flashjit
