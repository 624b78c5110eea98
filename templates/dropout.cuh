// Dropout as kernels use it: which weights of two tiles a lane keeps.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"
#include "templates/dropout_tiles.h"

namespace flashjit {

constexpr bool kDrops = config.dropped > 0;
constexpr float kDropoutFactor = dropout_factor(config.dropped);
constexpr float kKeptShare = 1.0f - config.dropped / 256.0f;  // one over it

// Where kernels keep the key of a launch: 16 bytes of shared memory.
__device__ inline void store_dropout_key(u32 address, const KernelParams& params) {
  const FourWords key = dropout_key(params);
#pragma unroll
  for (int i = 0; i < 4; ++i) store_shared(address + i * 4, key.word[i]);
}
__device__ inline FourWords load_dropout_key(u32 address) {
  FourWords key;
#pragma unroll
  for (int i = 0; i < 4; i += 2) load_shared_pair(key.word[i], key.word[i + 1], address + i * 4);
  return key;
}

// x, or 0.
__device__ inline float keep(float x, u32 mask) { return __uint_as_float(__float_as_uint(x) & mask); }

// The calls of a warp, for tiles of a head and a batch index. What follows from the lane is derived again for every draw,
// as whoever draws says it is: kept in registers across loops it would spill.
template <WeightRows rows>
struct DropoutCalls {
  FourWords key;
  u32 b, h, lane;

  // `row` and `column`: of this lane's call, from dropout_place_of_row() and the like.
  __device__ CallHalves call(u32 row, u32 column) const {
    constexpr bool kQueries = rows == WeightRows::queries;
    const FourWords words = dropout_call(key, b, h, kQueries ? row : column, kQueries ? column : row);
    return halves_of_call<rows>(words, lane);
  }
  __device__ void pair(KeptTile& first, KeptTile& second, u32 row, u32 column) const {
    CallHalves halves = call(row, column);
#pragma unroll
    for (u32& half : halves.other) half = __shfl_xor_sync(0xffffffff, half, 4);
    tiles_of_halves<config.dropped>(first, second, halves, lane);
  }
  // Of tiles side by side and one below the other, whose first is in this row and column of tiles. Two go together, or the
  // last one is alone.
  template <int row_tiles, int column_tiles>
  __device__ void draw(KeptTile (&kept)[row_tiles][column_tiles], u32 first_row, u32 first_column) const {
    const u32 second = call_of_lane(lane);
    const auto row_of = [&](u32 tile) { return dropout_place_of_row(first_row + tile, lane); };
    const auto column_of = [&](u32 tile) { return dropout_place_of_column(first_column + tile, lane); };
#pragma unroll
    for (int i = 0; i < row_tiles; i += 2)
#pragma unroll
      for (int j = 0; j < column_tiles; ++j) {
        if (i + 1 < row_tiles) pair(kept[i][j], kept[i + 1][j], row_of(i + second), column_of(j));
        else if (j % 2 == 1) pair(kept[i][j - 1], kept[i][j], row_of(i), column_of(j - 1 + second));
        else if (j + 1 == column_tiles) kept[i][j] = tile_of_half<config.dropped>(call(row_of(i), column_of(j)));
      }
  }
};

// Here, and not where it is used.
template <int tiles>
__device__ inline void pin_kept(KeptTile (&kept)[1][tiles]) {
#pragma unroll
  for (KeptTile& tile : kept[0]) tile.word[0] = recompute(tile.word[0]), tile.word[1] = recompute(tile.word[1]);
}

// A tile of weights as an operand: 0 where they are dropped.
template <WeightRows rows>
__device__ inline void drop(u32 (&p)[4], const KeptTile& kept) {
#pragma unroll
  for (int i = 0; i < 4; ++i) p[i] &= mask_of_operand<rows>(kept, i);
}
template <WeightRows rows, int tiles>
__device__ inline void drop(u32 (&p)[tiles][4], const KeptTile (&kept)[1][tiles]) {
#pragma unroll
  for (int i = 0; i < tiles; ++i) drop<rows>(p[i], kept[0][i]);
}

}  // namespace flashjit
