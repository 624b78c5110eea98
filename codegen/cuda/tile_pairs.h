// tile_pairs.gen.cuh: what the launches for lists of tiles ask of two tiles (compiler/analysis/tile_pairs.h).
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

// Empty where a plan has no such launches.
std::string emit_tile_pairs(const Plan& plan);

}  // namespace flashjit
