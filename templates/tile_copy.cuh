// Tiles between global and shared memory, in 16-byte chunks of the swizzled layout.
#pragma once

#include "templates/device.cuh"

namespace flashjit {

// One chunk of eight 16-bit elements, global to shared. Inputs that are less than 16-byte aligned take narrower copies;
// two-byte alignment is below what cp.async can do and goes through registers.
template <int copy_bytes>
__device__ inline void copy_chunk(u32 shared, const u16* global, bool valid) {
  if constexpr (copy_bytes >= 4) {
#pragma unroll
    for (int byte = 0; byte < 16; byte += copy_bytes) copy_async<copy_bytes>(shared + byte, global + byte / 2, valid);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 low = valid ? global[2 * i] : 0, high = valid ? global[2 * i + 1] : 0;
      store_shared(shared + 4 * i, low | high << 16);
    }
  }
}

// Starts the copy of rows first..first + tile_rows - 1 of a [rows, head_dim] matrix with `stride` elements between rows.
// Rows from `rows` on and columns from head_dim on become zero: a zero K gives a score that is masked anyway, and a zero V
// keeps garbage behind the end of a sequence (NaN, infinity) out of 0 * V.
template <int threads, int tile_rows, int head_dim, int copy_bytes>
__device__ inline void copy_tile(u32 shared, const u16* global, Int64 stride, int first, int rows) {
  constexpr int kChunks = round_up(head_dim, 16) / 8;
  constexpr TileLayout kTile = {tile_rows, kChunks};
  constexpr int kTotal = tile_rows * kChunks;
  // Derived again for each tile: a few integer instructions beside hundreds of matrix ones, instead of registers that are
  // held across the loop. Unsigned, so that division and modulo become shifts and masks.
  const u32 thread = recompute(threadIdx.x);
  if constexpr (threads % kChunks == 0 && kTotal % threads == 0) {
    // A thread stays in its column, so one pointer walks down the rows and one comparison per row is left.
    constexpr int kRowStep = threads / kChunks;
    const u32 row = thread / kChunks, chunk = thread % kChunks;
    const int left = (head_dim % 16 == 0 || chunk < head_dim / 8) ? rows - first - static_cast<int>(row) : 0;
    const u16* source = global + (first + row) * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < tile_rows; i += kRowStep) {
      copy_chunk<copy_bytes>(shared + kTile.offset(row + i, chunk), source, i < left);
      source += kRowStep * stride;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kTotal; i += threads) {
      const u32 index = i + thread;
      if (kTotal % threads != 0 && index >= kTotal) break;
      const u32 row = index / kChunks, chunk = index % kChunks;
      const bool valid = first + static_cast<int>(row) < rows && (head_dim % 16 == 0 || chunk < head_dim / 8);
      copy_chunk<copy_bytes>(shared + kTile.offset(row, chunk), global + (first + row) * stride + chunk * 8, valid);
    }
  }
}

// One chunk of eight finished 16-bit elements to global memory.
template <int copy_bytes>
__device__ inline void store_chunk(u16* global, uint4 value) {
  if constexpr (copy_bytes == 16) {
    *reinterpret_cast<uint4*>(global) = value;
  } else if constexpr (copy_bytes == 8) {
    reinterpret_cast<uint2*>(global)[0] = make_uint2(value.x, value.y);
    reinterpret_cast<uint2*>(global)[1] = make_uint2(value.z, value.w);
  } else {
    const u32 words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (copy_bytes == 4) {
        reinterpret_cast<u32*>(global)[i] = words[i];
      } else {
        global[2 * i] = static_cast<u16>(words[i]);
        global[2 * i + 1] = static_cast<u16>(words[i] >> 16);
      }
    }
  }
}

}  // namespace flashjit
