// Emits the function that finds which tiles of keys each tile of queries has to visit (codegen/host/tile_map).
#pragma once

#include "codegen/host/emit/ir.h"
#include "codegen/host/tile_map/tile_map.h"

namespace flashjit::host {

// Emits void flashjit_tile_map(const TileMapCall*).
void emit_tile_map(Ir& ir, const Plan& plan, const PairAnalysis& pairs);

}  // namespace flashjit::host
