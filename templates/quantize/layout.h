// Sizes that the quantize family derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

// A warp has as many rows as a matrix instruction, so that it can rotate them.
constexpr int kQuantizedRows = 16;
constexpr int quantize_threads(const KernelConfig& c) { return c.tile_q / kQuantizedRows * 32; }
// Returns the blocks that share an SM: as many warps as leave a lane the registers for its columns. More registers than
// two blocks leave make kernels with angles from tables slower [M89].
constexpr int quantize_blocks_per_sm(const KernelConfig& c) {
  return (c.head_dim_qk <= 128 ? 512 : 256) / quantize_threads(c);
}
// Returns the heads that a block takes one after the other, so that it reads the angles of all but the first from L1.
// Short tables, as with d=64, lose by this [M90].
constexpr int heads_of_block(const KernelConfig& c) {
  const bool long_tables = c.rope != Rope::none && c.rope_base == 0 && c.head_dim_qk > 64;
  return !long_tables ? 1 : c.heads_q < 4 ? c.heads_q : 4;
}
constexpr int blocks_of_heads(const KernelConfig& c) { return (c.heads_q + heads_of_block(c) - 1) / heads_of_block(c); }
// Returns the tiles that share a scale, or 0 if all tiles of a head do.
constexpr int tiles_of_scale(const KernelConfig& c) { return c.scale_block / c.tile_q; }

// A block takes one tile after the other, and loads the next one while it computes. No copy of 2 bytes goes to shared
// memory; rows that turn leave no registers for this, and short rows have many blocks in an SM instead [M91].
constexpr bool reads_ahead(const KernelConfig& c) {
  return c.copy_bytes > 2 && c.rope == Rope::none && c.head_dim_qk > 64;
}

// Shared memory: the pieces of the next tile that threads have requested, and a number for each warp.
constexpr int quantize_ahead_bytes(const KernelConfig& c) {
  return reads_ahead(c) ? c.tile_q * round_up(c.head_dim_qk, 16) * 2 : 0;
}
constexpr int quantize_smem(const KernelConfig& c) { return quantize_ahead_bytes(c) + quantize_threads(c) / 32 * 4; }

}  // namespace flashjit
