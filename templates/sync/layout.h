// Sizes that the sync family derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

constexpr int threads_of(const KernelConfig& c) { return c.sync.warps * 32; }
constexpr int rows_per_warp(const KernelConfig& c) { return c.tile_q / c.sync.warps; }

// The columns of V by which a block multiplies P: all columns, or a slice of wide V, because registers hold no more of
// O. Slices are blocks of their own, each with all scores. The last one ends where V does, so it may share columns with
// the one before.
constexpr int kMostColumns = 256;
constexpr int value_slices(const KernelConfig& c) { return (c.head_dim_v + kMostColumns - 1) / kMostColumns; }
constexpr int slice_columns(const KernelConfig& c) {
  return round_up((c.head_dim_v + value_slices(c) - 1) / value_slices(c), kChunkBytes / size_of(c.element));
}
constexpr int padded_slice(const KernelConfig& c) { return round_up(slice_columns(c), step_columns(c.element)); }

// Shared memory of the sync family: [ Q | K stages | V stages | block | key of dropout ]. The output tile is staged in
// Q's memory (each warp only touches its own rows), so Q's region is as large as the larger of the two. Q that lives in
// registers passes through the K/V region before the loop, and then O is staged over K and V. `block` holds what all
// threads of the block agree on and would otherwise keep in registers: the sequence, its limits, and where K and V of
// this head start.
constexpr int block_state_bytes(const KernelConfig& c) { return c.list_heads > 0 ? 112 : 96; }

struct SyncLayout {
  TileLayout q, k, v, o;
  int q_offset = 0, k_offset = 0, v_offset = 0, o_offset = 0, block_offset = 0, dropout_offset = 0;
  int bytes = 0;
};

constexpr SyncLayout sync_layout(const KernelConfig& c) {
  SyncLayout s;
  s.q = tile_layout(c.tile_q, padded_dim_qk(c), c.element);
  s.k = tile_layout(c.tile_kv, padded_dim_qk(c), c.element);
  s.v = tile_layout(c.tile_kv, padded_slice(c), c.element);
  // O of fp32 is not staged, so its size does not count here.
  s.o = tile_layout(c.tile_q, padded_slice(c), c.output == Element::f32 ? c.element : c.output);
  const int q_or_o = s.q.bytes() > s.o.bytes() ? s.q.bytes() : s.o.bytes();
  const int kv = c.stages * (s.k.bytes() + s.v.bytes());
  s.k_offset = c.sync.q_in == QueryStorage::registers ? 0 : q_or_o;
  s.v_offset = s.k_offset + c.stages * s.k.bytes();
  s.block_offset = c.sync.q_in == QueryStorage::registers ? (q_or_o > kv ? q_or_o : kv) : q_or_o + kv;
  s.dropout_offset = s.block_offset + block_state_bytes(c);
  s.bytes = s.dropout_offset + dropout_key_bytes(c);
  return s;
}

}  // namespace flashjit
