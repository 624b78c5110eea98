// Sizes of the backward loop that follow from a KernelConfig. Shared by host and device.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

// Two launches have the same shape, with the sides exchanged. A block keeps the rows of one side, 16 for each warp, and
// takes tiles of the other, its columns: rows of K and V against columns of Q and dO, for dK and dV; rows of Q and dO
// against columns of K and V, for dQ.
enum class Side { keys, queries };  // of the rows

constexpr int kRowsOfWarp = 16;
constexpr int backward_threads(const KernelConfig& c) { return c.warps * 32; }
constexpr int block_rows(const KernelConfig& c) { return c.tile_kv; }
constexpr int block_columns(const KernelConfig& c) { return c.tile_q; }

// dK and dV together have so many columns in the registers of a warp. Where they have more, several blocks share them,
// each of which makes all scores.
constexpr int kMostSums = 256;
constexpr int gradient_parts(const KernelConfig& c, Side side) {
  return side == Side::queries ? 1 : (padded_dim_qk(c) + padded_dim_v(c) + kMostSums - 1) / kMostSums;
}
constexpr int part_of(int padded_dim, int parts) { return round_up((padded_dim + parts - 1) / parts, 16); }

// The logarithm of a row's sum, for exp2, and what is subtracted from dP. Of queries.
struct RowFacts {
  float lse, delta;
};

// With dq=atomics a block of keys multiplies what its warps have left of ds in shared memory, all rows, with K: a warp
// has 16 queries, and a share of the columns of the block's part.
constexpr int query_groups(const KernelConfig& c) { return block_columns(c) / 16; }
constexpr int column_groups(const KernelConfig& c) { return c.warps / query_groups(c); }

struct BackwardLayout {
  TileLayout rows_qk, rows_v, columns_qk, columns_v, ds;
  int rows_v_offset, columns_offset, ds_offset, facts_offset, state_offset;
  int stage_bytes;  // of columns_qk, and columns_v behind it
  int bytes;
};
constexpr int kBackwardStateBytes = 128;

constexpr BackwardLayout backward_layout(const KernelConfig& c) {
  BackwardLayout l = {};
  l.rows_qk = tile_layout(block_rows(c), padded_dim_qk(c), c.element);
  l.rows_v = tile_layout(block_rows(c), padded_dim_v(c), c.element);
  l.columns_qk = tile_layout(block_columns(c), padded_dim_qk(c), c.element);
  l.columns_v = tile_layout(block_columns(c), padded_dim_v(c), c.element);
  l.rows_v_offset = l.rows_qk.bytes();
  l.columns_offset = l.rows_v_offset + l.rows_v.bytes();
  l.stage_bytes = l.columns_qk.bytes() + l.columns_v.bytes();
  l.ds = tile_layout(block_rows(c), block_columns(c), c.element);
  l.ds_offset = l.columns_offset + c.stages * l.stage_bytes;
  l.facts_offset = l.ds_offset + (c.dq == DqSums::atomics ? l.ds.bytes() : 0);
  l.state_offset = l.facts_offset + c.stages * block_columns(c) * static_cast<int>(sizeof(RowFacts));
  l.bytes = l.state_offset + kBackwardStateBytes;
  return l;
}

// The first launch, and with dq=atomics the last: a warp has a row at a time.
constexpr int kPrepareThreads = 128, kPrepareRows = 32;

}  // namespace flashjit
