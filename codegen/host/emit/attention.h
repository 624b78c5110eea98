// The blocked kernel computes an online softmax over KV tiles, for one tile of queries of one head.
#pragma once

#include "codegen/host/emit/ir.h"

namespace flashjit::host {

inline constexpr char kTileName[] = "flashjit_tile";
inline constexpr char kSeenKeysName[] = "flashjit_seen_keys";
// Emits void flashjit_tile(const TileCall*), and void flashjit_seen_keys(const TileCall*, SeenKeys*), which finds the
// keys that it will read. With `mapped`, a map gives the tiles that are visited (codegen/host/tile_map).
void emit_tile(Ir& ir, const Plan& plan, bool mapped);

// The textbook version consists of steps, void step(const NaiveCall*), for one row.
inline constexpr char kNaiveScoresName[] = "flashjit_naive_scores";
inline constexpr char kNaiveSoftmaxName[] = "flashjit_naive_softmax";
inline constexpr char kNaiveProductName[] = "flashjit_naive_product";
void emit_naive(Ir& ir, const Plan& plan);

}  // namespace flashjit::host
