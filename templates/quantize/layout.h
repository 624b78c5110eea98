// Sizes of the quantize family that follow from a KernelConfig. Shared by host and device.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

// A warp has as many rows as a matrix instruction, so that it can rotate them.
constexpr int kQuantizedRows = 16;
constexpr int quantize_threads(const KernelConfig& c) { return c.tile_q / kQuantizedRows * 32; }
// So many blocks share an SM: as many warps as leave a lane the registers for its columns. With more registers than two blocks
// leave, d=128 with angles from tables takes 58.0 us for 41.6 (H200, 2026-11-25).
constexpr int quantize_blocks_per_sm(const KernelConfig& c) {
  return (c.head_dim_qk <= 128 ? 512 : 256) / quantize_threads(c);
}
// Heads that a block takes one after the other, so that it has the angles of all but the first from L1. H200, 2026-11-25,
// 4 for 1: 0.84 of the time with d=256, 0.96 with 128, but 1.11 with 64, whose tables are short.
constexpr int heads_of_block(const KernelConfig& c) {
  const bool long_tables = c.rope != Rope::none && c.rope_base == 0 && c.head_dim_qk > 64;
  return !long_tables ? 1 : c.heads_q < 4 ? c.heads_q : 4;
}
constexpr int blocks_of_heads(const KernelConfig& c) { return (c.heads_q + heads_of_block(c) - 1) / heads_of_block(c); }
// Tiles that share a scale; 0: all of a head.
constexpr int tiles_of_scale(const KernelConfig& c) { return c.scale_block / c.tile_q; }

// A block takes one tile after the other, and asks for the next one while it computes. Nothing copies 2 bytes to shared
// memory; rows that turn leave no registers for it (d=128 spills 120 bytes; 256 takes 101 us for 96), and short rows have
// many blocks in an SM instead (d=64: 19.6 us for 18.8; H200, 2026-11-28).
constexpr bool reads_ahead(const KernelConfig& c) {
  return c.copy_bytes > 2 && c.rope == Rope::none && c.head_dim_qk > 64;
}

// Shared memory: what threads have asked for of the next tile, and a number of each warp.
constexpr int quantize_ahead_bytes(const KernelConfig& c) {
  return reads_ahead(c) ? c.tile_q * round_up(c.head_dim_qk, 16) * 2 : 0;
}
constexpr int quantize_smem(const KernelConfig& c) { return quantize_ahead_bytes(c) + quantize_threads(c) / 32 * 4; }

}  // namespace flashjit
