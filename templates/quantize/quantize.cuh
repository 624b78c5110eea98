// Turns rows of 16-bit elements into elements of 8 bits and scales: y = x / scale, rounded. The scale makes the largest
// |x| that shares it the largest number of the type. With `rope` x is turned first. Reading x and writing y once limits
// the speed.
#pragma once

#include "templates/append/narrow.cuh"
#include "templates/quantize/turn.cuh"
#include "templates/sequence.cuh"

namespace flashjit {

constexpr float kLargestNarrow = config.results == Narrow::e4m3 ? 448.0f : 57344.0f;
// x is multiplied by this as well, because the matrix of a rotation leaves a row longer.
constexpr float kLength = config.rotate ? rotation_factor(config.head_dim_qk) : 1.0f;
// If no number is larger, the scale is 1: a quotient with such a number would overflow.
constexpr float kNothing = 0x1p-100f;

// The rows of a block, all of one head at a time. Tiles of all sequences are numbered.
struct Tile {
  Sequence seq;
  int number, tile;  // `number` counts all tiles, and `tile` those of its sequence.

  __device__ Tile(const KernelParams& p, int item, int head) : number(item / blocks_of_heads(config)) {
    seq.h = item % blocks_of_heads(config) * heads_of_block(config) + head;
    if constexpr (kRows == Rows::packed) {
      const NumberedTile numbered = numbered_tile(p.offsets_q, p.batch, config.tile_q, number);
      seq.b = numbered.b;
      tile = numbered.tile;
      seq.q_token = p.offsets_q[seq.b];
    } else {
      seq.b = number / p.tiles_q;
      tile = number % p.tiles_q;
      seq.q_token = 0;
    }
    find_query_length(seq, p);
  }
  // Packed sequences have a few more numbers than tiles.
  __device__ bool has_rows() const { return kRows != Rows::packed || tile * config.tile_q < seq.q_len; }
  // Returns the offset of a token's row in a tensor whose rows have these strides.
  __device__ Int64 row(const Strides& stride, int token) const { return query_row(stride, seq, seq.h, token); }
};

// The tokens of the two rows of a lane, and whether these rows exist.
struct RowPair {
  int token[2];
  bool valid[2];
  __device__ explicit RowPair(const Tile& tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      token[r] = tile.tile * config.tile_q + threadIdx.x / 32 * kQuantizedRows + threadIdx.x % 32 / 4 + 8 * r;
      valid[r] = token[r] < tile.seq.q_len;
    }
  }
};

// Returns the position of a row's token in its sequence. A token before the first one turns as the first one.
__device__ inline int position_of(const KernelParams& p, const Tile& tile, int token) {
  if (p.positions == nullptr) return max(p.first_position + token, 0);
  return min(max(p.positions[tile.row(p.positions_stride, token)], 0), p.rope_positions - 1);
}

// Offsets of a lane's rows in x.
struct RowsOfX {
  Int64 at[2];
  __device__ RowsOfX(const KernelParams& p, const Tile& tile, const RowPair& rows)
      : at{tile.row(p.x_stride, rows.token[0]), tile.row(p.x_stride, rows.token[1])} {}
};

__device__ inline void ask_for_tile(const KernelParams& p, const Tile& tile) {
  const RowPair rows(tile);
  ask_for_rows(p.x, RowsOfX(p, tile, rows).at, rows.valid, threadIdx.x % 32);
}
__device__ inline Raw load_tile(const KernelParams& p, const Tile& tile) {
  const RowPair rows(tile);
  return load_rows(p.x, RowsOfX(p, tile, rows).at, rows.valid, threadIdx.x % 32);
}
__device__ inline void turn_tile(const KernelParams& p, const Tile& tile, const RowPair& rows, Raw& raw) {
  if constexpr (config.rope != Rope::none) {
    int positions[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (rows.valid[r]) positions[r] = position_of(p, tile, rows.token[r]);
    }
    turn(p, RowsOfX(p, tile, rows).at, rows.valid, positions, threadIdx.x % 32, raw);
  }
}
__device__ inline Values values_of(const Raw& raw) {
  if constexpr (config.rotate) return rotated(raw, threadIdx.x % 32);
  else return numbers_of(raw);
}

__device__ inline float largest_of(const Values& v) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 8 * kGroups; ++i) largest = fmaxf(largest, fabsf(v.of[i / 4 / kGroups][i / 4 % kGroups][i % 4]));
  return largest;
}

// Infinity has no place among numbers that share a scale: it becomes NaN, and counts for nothing, as NaN does.
__device__ inline float largest_finite(Values& v) {
  const float largest = largest_of(v);
  if (largest < kInfinity) return largest;
#pragma unroll
  for (int i = 0; i < 8 * kGroups; ++i) {
    float& x = v.of[i / 4 / kGroups][i / 4 % kGroups][i % 4];
    if (fabsf(x) == kInfinity) x = __uint_as_float(0x7fffffff);
  }
  return largest_of(v);
}

// Returns the largest of numbers that are not negative, which have the order of their bits.
__device__ inline float largest_of_warp(float x) {
  u32 largest;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(__float_as_uint(x)));
  return __uint_as_float(largest);
}
__device__ inline float largest_of_block(float x) {
  constexpr int kWarps = quantize_threads(config) / 32;
  extern __shared__ __align__(16) char memory[];
  float* const of_warps = reinterpret_cast<float*>(memory + quantize_ahead_bytes(config));
  const float of_warp = largest_of_warp(x);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, of_warps[i]);
  return largest;
}

// Returns four numbers as bytes. NaN stays NaN, and a number that rounding takes beyond the largest one becomes the
// largest.
__device__ inline u32 narrowed(const float (&x)[4], float factor) {
#if __CUDA_ARCH__ >= 890
  u16 low, high;
  if constexpr (config.results == Narrow::e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1] * factor), "f"(x[0] * factor));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3] * factor), "f"(x[2] * factor));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1] * factor), "f"(x[0] * factor));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3] * factor), "f"(x[2] * factor));
  }
  return low | static_cast<u32>(high) << 16;
#else
  u32 bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bytes |= appending::narrowed<config.results>(x[i] * factor) << 8 * i;
  return bytes;
#endif
}

// `largest` does not contain the length of the rotation. Quotients are rounded as everywhere, so that all devices give
// the same bytes.
__device__ inline void store_tile(const KernelParams& p, const Tile& tile, const RowPair& rows, const Values& v,
                                  float largest) {
  const float factor = largest * kLength > kNothing ? __fdiv_rn(kLargestNarrow, largest) : kLength;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!rows.valid[r]) continue;
    auto* row = static_cast<unsigned char*>(p.y) + tile.row(p.y_stride, rows.token[r]);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      if (!has_column(column_of(piece, lane))) continue;
      Words<kColumnsOfPiece, config.copy_bytes> bytes;
#pragma unroll
      for (int i = 0; i < kGroupsOfPiece; ++i) bytes.words[i] = narrowed(v.of[r][piece * kGroupsOfPiece + i], factor);
      bytes.store(row + column_of(piece, lane));
    }
  }
}
__device__ inline void store_scale(const KernelParams& p, const Tile& tile, int block, float largest) {
  if (threadIdx.x != 0) return;
  const float size = largest * kLength;
  const Strides& stride = p.scale_y_stride;
  p.scale_y[tile.seq.b * stride.batch + tile.seq.h * stride.head + block * stride.token] =
      size > kNothing ? __fdiv_rn(size, kLargestNarrow) : 1.0f;
}

// The numbers of a tile that a lane has, turned and rotated.
struct Computed {
  RowPair rows;
  Values v;
  float of_lane;  // The lane's largest number.
  __device__ Computed(const KernelParams& p, const Tile& tile, Raw raw) : rows(tile) {
    turn_tile(p, tile, rows, raw);
    v = values_of(raw);
    of_lane = largest_finite(v);
  }
};

// Calls visit(tile, its numbers) for each tile of a block: for all heads of an item or, where tiles are read ahead, for
// one item after the other. In the second case the next tile is loaded meanwhile: a block that takes all registers of
// an SM would load nothing while it computes (d=256). With `backwards`, the last item goes first.
template <bool backwards, class Visit>
__device__ inline void each_tile(const KernelParams& p, const Visit& visit) {
  const auto tile_at = [&](int item, int head) { return Tile(p, backwards ? p.items - 1 - item : item, head); };
  if constexpr (reads_ahead(config)) {
    int item = blockIdx.x;
    if (item < p.items) ask_for_tile(p, tile_at(item, 0));
#pragma unroll 1
    for (; item < p.items; item += gridDim.x) {
      const Tile tile = tile_at(item, 0);
      const Raw raw = rows_asked_for();
      if (item + gridDim.x < p.items) ask_for_tile(p, tile_at(item + gridDim.x, 0));
      if (!tile.has_rows()) continue;
      visit(tile, Computed(p, tile, raw));
      __syncthreads();  // Warps have read each other's results.
    }
  } else {
#pragma unroll 1
    for (int head = 0; head < heads_of_block(config); ++head) {
      const Tile tile = tile_at(blockIdx.x, head);
      if (tile.seq.h >= config.heads_q || !tile.has_rows()) return;
      if (head > 0) __syncthreads();
      visit(tile, Computed(p, tile, load_tile(p, tile)));
    }
  }
}

// Handles rows of a block that all share one scale.
__device__ inline void quantize_blocks(const KernelParams& p) {
  each_tile<false>(p, [&](const Tile& tile, const Computed& x) {
    const float largest = largest_of_block(x.of_lane);
    store_tile(p, tile, x.rows, x.v, largest);
    store_scale(p, tile, tile.tile, largest);
  });
}

// Where several tiles share a scale, the first launch stores the largest number of each tile: tiles of a head follow
// each other, by number.
__device__ inline Int64 index_of_largest(const KernelParams& p, const Tile& tile, int number) {
  return static_cast<Int64>(tile.seq.h) * (kRows == Rows::packed ? p.tiles_q : p.tiles_q * p.batch) + number;
}
__device__ inline void find_largest(const KernelParams& p, float* largest) {
  each_tile<false>(p, [&](const Tile& tile, const Computed& x) {
    const float of_tile = largest_of_block(x.of_lane);
    if (threadIdx.x == 0) largest[index_of_largest(p, tile, tile.number)] = of_tile;
  });
}

// The last tile goes first, because the tile that the first launch has read last is still in L2.
__device__ inline void quantize_tiles(const KernelParams& p, const float* largest) {
  each_tile<true>(p, [&](const Tile& tile, const Computed& x) {
    constexpr int kTiles = tiles_of_scale(config);
    const int tiles = (tile.seq.q_len + config.tile_q - 1) / config.tile_q;
    const int block = kTiles == 0 ? 0 : tile.tile / max(kTiles, 1);
    const int first = block * kTiles, end = kTiles == 0 ? tiles : min(first + kTiles, tiles);
    const float* of_sequence = largest + index_of_largest(p, tile, tile.number - tile.tile);
    float of_block = 0;
    for (int i = first + threadIdx.x % 32; i < end; i += 32) of_block = fmaxf(of_block, of_sequence[i]);
    of_block = largest_of_warp(of_block);
    store_tile(p, tile, x.rows, x.v, of_block);
    if (tile.tile == first) store_scale(p, tile, block, of_block);
  });
}

}  // namespace flashjit
