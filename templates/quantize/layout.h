// Sizes of the quantize family that follow from a KernelConfig. Shared by host and device.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

// A warp has as many rows as a matrix instruction, so that it can rotate them.
constexpr int kQuantizedRows = 16;
constexpr int quantize_threads(const KernelConfig& c) { return c.tile_q / kQuantizedRows * 32; }
// At least so many blocks share an SM: with more registers than that leaves, d=128 with angles from tables takes 58.0 us for 41.6
// (H200, 2026-11-25).
constexpr int quantize_blocks_per_sm(const KernelConfig& c) { return c.head_dim_qk <= 128 ? 2 : 1; }
// Heads that a block takes one after the other, so that it has the angles of all but the first from L1. H200, 2026-11-25,
// 4 for 1: 0.84 of the time with d=256, 0.96 with 128, but 1.11 with 64, whose tables are short.
constexpr int heads_of_block(const KernelConfig& c) {
  const bool long_tables = c.rope != Rope::none && c.rope_base == 0 && c.head_dim_qk > 64;
  return !long_tables ? 1 : c.heads_q < 4 ? c.heads_q : 4;
}
constexpr int blocks_of_heads(const KernelConfig& c) { return (c.heads_q + heads_of_block(c) - 1) / heads_of_block(c); }
// Shared memory: a number of each warp.
constexpr int quantize_smem(const KernelConfig& c) { return quantize_threads(c) / 32 * 4; }

// Tiles that share a scale; 0: all of a head.
constexpr int tiles_of_scale(const KernelConfig& c) { return c.scale_block / c.tile_q; }

}  // namespace flashjit
