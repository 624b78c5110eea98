// Tiles between global and shared memory, in 16-byte chunks of the swizzled layout.
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/device.cuh"
#include "templates/tile_layouts.h"

namespace flashjit {

// Copies one chunk from global to shared memory. Inputs with less than 16-byte alignment take narrower copies. Two-byte
// alignment is below what cp.async can do, and takes registers.
template <int copy_bytes, class T>
__device__ inline void copy_chunk(u32 shared, const T* global, bool valid) {
  if constexpr (copy_bytes >= 4) {
#pragma unroll
    for (int byte = 0; byte < kChunkBytes; byte += copy_bytes)
      copy_async<copy_bytes>(shared + byte, global + byte / sizeof(T), valid);
  } else {
    const u16* halves = reinterpret_cast<const u16*>(global);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 low = valid ? halves[2 * i] : 0, high = valid ? halves[2 * i + 1] : 0;
      store_shared(shared + 4 * i, low | high << 16);
    }
  }
}

// Loads eight elements of 8 bits.
template <int copy_bytes>
__device__ inline uint2 load_bytes(const unsigned char* global) {
  if constexpr (copy_bytes >= 8) return *reinterpret_cast<const uint2*>(global);
  if constexpr (copy_bytes == 4) {
    const u32* words = reinterpret_cast<const u32*>(global);
    return {words[0], words[1]};
  }
  const u16* halves = reinterpret_cast<const u16*>(global);
  return {halves[0] | static_cast<u32>(halves[1]) << 16, halves[2] | static_cast<u32>(halves[3]) << 16};
}

// Rows of a matrix with `stride` elements from one to the next. kv_rows.cuh finds the rows of a cache in pages.
template <class T>
struct StridedRows {
  using Element = T;
  static constexpr bool kHasAll = true;  // If false, some rows do not exist, and count as zeros.
  const T* first;
  Int64 stride;

  __device__ const T* row(int number) const { return first + number * stride; }
  __device__ bool has_row(int) const { return true; }
  // Rows have no numbers that would have to be read before.
  __device__ u32 number_of(int) const { return 0; }
  __device__ bool has_number(u32) const { return true; }
  __device__ const T* numbered_row(u32, int number) const { return row(number); }
  // Returns the row of a key, where `keys` keys share one row.
  template <int keys>
  __device__ const T* row_of(int key) const {
    return row(key / keys);
  }

  // Walks down the rows of a tile, `step` at a time, from row `tile` + `row` on. Rows from `count` on are not read.
  template <int step, int tile_rows>
  struct Walk {
    const T* at;
    Int64 stride;
    __device__ Walk(const StridedRows& rows, int tile, u32 row, u32 column, int)
        : at(rows.first + column + (tile + row) * rows.stride), stride(rows.stride) {}
    __device__ const T* row(int) const { return at; }
    __device__ bool has_row(int) const { return true; }
    __device__ void advance() { at += step * stride; }
  };
};

// widen_tile() is the form of copy_tile() for elements of 8 bits: they pass through registers, with a few loads under
// way at a time.
template <int threads, int tile_rows, int head_dim, int copy_bytes, Narrow narrow, class Rows>
__device__ inline void widen_tile(u32 shared, const Rows& rows, int first, int count) {
  constexpr int kStepColumns = step_columns(config.element);
  constexpr TileLayout kTile = tile_layout(tile_rows, round_up(head_dim, kStepColumns), config.element);
  constexpr int kChunks = kTile.chunks(), kColumns = kTile.chunk_columns();
  constexpr int kSpan = threads % kChunks == 0 ? kChunks : static_cast<int>(kTile.group());
  constexpr int kRowStep = threads / kSpan, kAcross = kChunks / kSpan;
  constexpr int kPieces = (tile_rows + kRowStep - 1) / kRowStep * kAcross, kAtATime = 4;
  const u32 thread = recompute(threadIdx.x);
  const u32 row = thread / kSpan, chunk = thread % kSpan;
  const int left = count - first - static_cast<int>(row);
  typename Rows::template Walk<kRowStep, tile_rows> walk(rows, first, row, chunk * kColumns, count);
#pragma unroll
  for (int begin = 0; begin < kPieces; begin += kAtATime) {
    uint2 pieces[kAtATime];
#pragma unroll
    for (int n = begin; n < kPieces && n < begin + kAtATime; ++n) {
      const int i = n / kAcross * kRowStep, j = n % kAcross * kSpan;
      const bool valid =
          i < left && row + i < tile_rows && j + chunk < head_dim / kColumns && (Rows::kHasAll || walk.has_row(i));
      pieces[n - begin] = make_uint2(0, 0);
      if (valid) pieces[n - begin] = load_bytes<copy_bytes>(walk.row(i) + j * kColumns);
      if (n % kAcross == kAcross - 1) walk.advance();
    }
#pragma unroll
    for (int n = begin; n < kPieces && n < begin + kAtATime; ++n) {
      const int i = n / kAcross * kRowStep, j = n % kAcross * kSpan;
      if (row + i < tile_rows)
        store_shared(shared + kTile.offset(row + i, chunk) + j * kChunkBytes, widened<narrow>(pieces[n - begin]));
    }
  }
}

// start_tile() is the form of copy_tile() for elements that are copied unchanged. A thread stays in its column and
// walks down the rows. Neighbouring threads take a whole row where that divides them evenly, which is faster than
// pieces [M95]; otherwise they take one swizzle group of it, and the other groups lie at immediate offsets.
template <int threads, int tile_rows, int head_dim, int copy_bytes, class Rows>
__device__ inline void start_tile(u32 shared, const Rows& rows, int first, int count) {
  using T = typename Rows::Element;
  constexpr int kStepColumns = kStepBytes / sizeof(T);
  constexpr TileLayout kTile = {tile_rows, round_up(head_dim, kStepColumns), sizeof(T)};
  constexpr int kChunks = kTile.chunks(), kColumns = kTile.chunk_columns();
  constexpr int kSpan = threads % kChunks == 0 ? kChunks : static_cast<int>(kTile.group());
  constexpr int kRowStep = threads / kSpan;
  // These numbers are derived again for each tile: a few integer instructions beside hundreds of matrix instructions
  // cost less than registers that are held across the loop. They are unsigned, so that division and modulo become
  // shifts and masks.
  const u32 thread = recompute(threadIdx.x);
  const u32 row = thread / kSpan, chunk = thread % kSpan;
  const int left = count - first - static_cast<int>(row);
  typename Rows::template Walk<kRowStep, tile_rows> walk(rows, first, row, chunk * kColumns, count);
#pragma unroll
  for (int i = 0; i < tile_rows; i += kRowStep) {
    if (i + kRowStep > tile_rows && row + i >= tile_rows) break;
    const T* source = walk.row(i);
#pragma unroll
    for (int j = 0; j < kChunks; j += kSpan) {
      const bool valid = i < left && (Rows::kHasAll || walk.has_row(i)) &&
                         (head_dim % kStepColumns == 0 || j + chunk < head_dim / kColumns);
      copy_chunk<copy_bytes>(shared + kTile.offset(row + i, chunk) + j * kChunkBytes, source + j * kColumns, valid);
    }
    walk.advance();
  }
}

// Starts the copy of rows first..first + tile_rows - 1 of a [count, head_dim] matrix; `first` is a multiple of tile_rows.
// Rows from `count` on and columns from head_dim on become zero: a zero K gives a score that is masked anyway, and a zero V
// keeps garbage behind the end of a sequence (NaN, infinity) out of 0 * V. `narrow`: the type of elements of 8 bits, which
// are widened to elements of products.
template <int threads, int tile_rows, int head_dim, int copy_bytes, Narrow narrow = config.cache, class Rows>
__device__ inline void copy_tile(u32 shared, const Rows& rows, int first, int count) {
  if constexpr (sizeof(typename Rows::Element) < size_of(config.element))
    widen_tile<threads, tile_rows, head_dim, copy_bytes, narrow>(shared, rows, first, count);
  else start_tile<threads, tile_rows, head_dim, copy_bytes>(shared, rows, first, count);
}

// Stores a chunk of finished elements to global memory.
template <int copy_bytes, class T>
__device__ inline void store_chunk(T* global, uint4 value) {
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
        reinterpret_cast<u16*>(global)[2 * i] = static_cast<u16>(words[i]);
        reinterpret_cast<u16*>(global)[2 * i + 1] = static_cast<u16>(words[i] >> 16);
      }
    }
  }
}

}  // namespace flashjit
