// Sizes of the quantize family that follow from a KernelConfig. Shared by host and device.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

// A warp has as many rows as a matrix instruction, so that it can rotate them.
constexpr int kQuantizedRows = 16;
constexpr int quantize_threads(const KernelConfig& c) { return c.tile_q / kQuantizedRows * 32; }
// On an SM, at least: they are worth more than registers for all that is asked for at once.
constexpr int quantize_blocks(const KernelConfig& c) {
  return 1024 / quantize_threads(c) / (c.head_dim_qk <= 64 ? 1 : c.head_dim_qk <= 128 ? 2 : 4);
}
// Shared memory: a number of each warp.
constexpr int quantize_smem(const KernelConfig& c) { return quantize_threads(c) / 32 * 4; }

// Tiles that share a scale; 0: all of a head.
constexpr int tiles_of_scale(const KernelConfig& c) { return c.scale_block / c.tile_q; }

}  // namespace flashjit
