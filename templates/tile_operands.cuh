// Addresses of the operands of matrix instructions, in tiles in shared memory.
#pragma once

#include "templates/device.cuh"
#include "templates/tile_layouts.h"

namespace flashjit {

// Returns a lane's ldmatrix address `step` steps along the row. The swizzle of a row depends on row % 8 only and
// regions are 128-byte aligned, so a step along the row is an XOR of the low bits plus an immediate, and 16 rows down
// is an immediate. One register for each tile, the address in its first 16 rows and columns, thus serves all fragments.
__device__ inline u32 along(u32 lane, const TileLayout layout, int step) {
  const u32 bytes = step * kStepBytes, low = layout.group() * kChunkBytes - 1;
  return (lane ^ (bytes & low)) + (bytes & ~low);
}
__device__ inline u32 down(const TileLayout layout, int step) { return step * 16 * layout.row_bytes(); }

}  // namespace flashjit
