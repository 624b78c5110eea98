// Sizes that the backward loop derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

// Two launches have the same form, with the sides exchanged. A block keeps the rows of one side and takes tiles of the
// other, its columns: rows of K and V against columns of Q and dO, for dK and dV, or rows of Q and dO against columns
// of K and V, for dQ.
enum class Side { keys, queries };  // The side of the rows.

// A warp has 32 rows, two operands of a matrix instruction: what it loads of the columns serves both, and loads limit
// this loop. Warps of the same rows are column groups: they share the columns of scores, and then those of the sums,
// and read in shared memory what the others made of the scores.
constexpr int kRowTiles = 2, kRowsOfWarp = 16 * kRowTiles;
constexpr int backward_threads(const KernelConfig& c) { return c.sync_backward.warps * 32; }
constexpr int block_rows(const KernelConfig& c) { return c.tile_kv; }
constexpr int block_columns(const KernelConfig& c) { return c.tile_q; }
constexpr int column_groups(const KernelConfig& c) { return c.sync_backward.warps / (block_rows(c) / kRowsOfWarp); }
constexpr int columns_of_warp(const KernelConfig& c) { return block_columns(c) / column_groups(c); }

// The columns of dK and dV together that the registers of a warp hold. If they have more, several blocks have a slice
// of them each, and all make the scores.
constexpr int kMostSums = 160;
// With v_in_k dV is added to dK, so a warp has the same columns of both.
constexpr int value_columns(const KernelConfig& c) { return c.v_in_k ? padded_dim_qk(c) : padded_dim_v(c); }
constexpr int gradient_slices(const KernelConfig& c, Side side) {
  const int most = kMostSums * column_groups(c);
  return side == Side::queries ? 1 : (padded_dim_qk(c) + value_columns(c) + most - 1) / most;
}
// Returns the columns of each of `shares` warps or blocks. The last ones may have fewer of their own, or none.
constexpr int share_of(int padded_dim, int shares) { return round_up((padded_dim + shares - 1) / shares, 16); }

// A query's facts: the logarithm of its row's sum, for exp2, and the number that is subtracted from dP, with dropout
// divided by its factor.
struct RowFacts {
  float lse, delta;
};

// True if queries have lists of keys (KernelConfig::selected). The heads of a group at one query, which share its list,
// are then the rows of the side of queries, which is the side of the first launch. Its columns are the keys of the
// list, wherever their rows lie.
constexpr bool has_lists(const KernelConfig& c) { return c.selected > 0; }
constexpr int row_tiles_of_list(const KernelConfig& c) { return (group_size(c) + block_rows(c) - 1) / block_rows(c); }

// With dq=atomics blocks add gradients of their columns to sums in memory, in any order: shares of dQ, or, where
// queries have lists, shares of dK and dV.
constexpr bool adds_queries(const KernelConfig& c) { return c.sync_backward.dq == DqSums::atomics && !has_lists(c); }
constexpr bool adds_keys(const KernelConfig& c) { return c.sync_backward.dq == DqSums::atomics && has_lists(c); }

// With dq=atomics a block of keys multiplies the ds that its warps have left in shared memory, all rows, by K. A warp
// has 32 queries, or the 16 that exist, and a share of the columns of the block's slice.
// The number of tiles of 16 queries.
constexpr int query_tiles(const KernelConfig& c) { return block_columns(c) % 32 == 0 ? 2 : 1; }
constexpr int query_groups(const KernelConfig& c) { return block_columns(c) / (16 * query_tiles(c)); }
constexpr int dq_column_groups(const KernelConfig& c) { return c.sync_backward.warps / query_groups(c); }

// Sums of dK and dV have a row for each row of K, with all its KV heads: columns of dK, and then of dV. A lane of a
// matrix instruction has four of 16 columns, two of either eight, which lie side by side.
constexpr int listed_row_floats(const KernelConfig& c) { return padded_dim_qk(c) + padded_dim_v(c); }
constexpr int offset_of_listed_sum(int column) {
  return column / 16 * 16 + column % 8 / 2 * 4 + column % 16 / 8 * 2 + column % 2;
}

// Sums of dQ lie in tiles of 16 queries by 8 columns, and tiles of the same queries follow each other. Every sequence
// begins with a tile of its own.
constexpr int kTileSums = 16 * 8;
constexpr int dq_tile_floats(const KernelConfig& c) { return c.head_dim_qk / 8 * kTileSums; }

// With few tiles of keys several blocks share the queries of one (parts.cuh). key_floats() is the number of sums of dK
// and dV of a warp.
constexpr bool shares_keys(const KernelConfig& c) { return adds_queries(c) && c.gradients == 0; }
constexpr int key_floats(const KernelConfig& c) {
  const int shares = gradient_slices(c, Side::keys) * column_groups(c);
  return kRowsOfWarp * (share_of(padded_dim_qk(c), shares) + share_of(value_columns(c), shares));
}

struct BackwardLayout {
  TileLayout rows_qk, rows_v, columns_qk, columns_v, ds;  // P lies like ds.
  int rows_v_offset, columns_offset, p_offset, ds_offset, facts_offset, state_offset, dropout_offset;
  int columns_v_offset;  // It counts from the begin of columns_qk.
  int stage_bytes;
  int bytes;
};
constexpr int kBackwardStateBytes = 128;

// True if the rows, or the columns, of a launch are keys whose V is read in the tile of K. Where V is a tensor of its own
// both launches have the same layout.
constexpr bool has_rows_once(const KernelConfig& c, Side side) { return c.v_in_k && side == Side::keys; }
constexpr bool has_columns_once(const KernelConfig& c, Side side) { return c.v_in_k && side == Side::queries; }

constexpr BackwardLayout backward_layout(const KernelConfig& c, Side side) {
  BackwardLayout l = {};
  const bool rows_once = has_rows_once(c, side), columns_once = has_columns_once(c, side);
  l.rows_qk = tile_layout(block_rows(c), padded_dim_qk(c), c.element);
  l.rows_v = tile_layout(block_rows(c), rows_once ? padded_dim_qk(c) : padded_dim_v(c), c.element);
  l.columns_qk = tile_layout(block_columns(c), padded_dim_qk(c), c.element);
  l.columns_v = tile_layout(block_columns(c), columns_once ? padded_dim_qk(c) : padded_dim_v(c), c.element);
  l.rows_v_offset = rows_once ? 0 : l.rows_qk.bytes();
  l.columns_offset = l.rows_v_offset + l.rows_v.bytes();
  l.columns_v_offset = columns_once ? 0 : l.columns_qk.bytes();
  l.stage_bytes = l.columns_v_offset + l.columns_v.bytes();
  l.ds = tile_layout(block_rows(c), block_columns(c), c.element);
  const bool shared = column_groups(c) > 1;
  l.p_offset = l.columns_offset + c.stages * l.stage_bytes;
  l.ds_offset = l.p_offset + (shared || adds_keys(c) ? l.ds.bytes() : 0);
  l.facts_offset = l.ds_offset + (shared || c.sync_backward.dq == DqSums::atomics ? l.ds.bytes() : 0);
  l.state_offset = l.facts_offset + c.stages * block_columns(c) * static_cast<int>(sizeof(RowFacts));
  l.dropout_offset = l.state_offset + kBackwardStateBytes;
  l.bytes = l.dropout_offset + dropout_key_bytes(c);
  return l;
}

// In the first launch, and with dq=atomics in the last one, a warp has a row at a time.
constexpr int kPrepareThreads = 128, kPrepareRows = 32;

// In the launch that makes dK and dV of lists in a fixed order (listed_keys.cuh), a block has this number of rows of K.
constexpr int kListedThreads = 256, kListedRows = 16;

}  // namespace flashjit
