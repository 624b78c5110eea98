// Dropout as kernels use it: the weights of two tiles that a lane keeps.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"
#include "templates/dropout_tiles.h"

namespace flashjit {

constexpr bool kDrops = config.dropped > 0;
constexpr float kDropoutFactor = dropout_factor(config.dropped);
constexpr float kKeptShare = 1.0f - config.dropped / 256.0f;  // The inverse of kDropoutFactor.

// Kernels keep the key of a launch in 16 bytes of shared memory.
__device__ inline void store_dropout_key(u32 address, const KernelParams& params) {
  const FourWords key = dropout_key<config.places>(params);
#pragma unroll
  for (int i = 0; i < 4; ++i) store_shared(address + i * 4, key.word[i]);
}
__device__ inline FourWords load_dropout_key(u32 address) {
  FourWords key;
#pragma unroll
  for (int i = 0; i < 4; i += 2) load_shared_pair(key.word[i], key.word[i + 1], address + i * 4);
  return key;
}

// Returns x where the mask is set, else 0.
__device__ inline float keep(float x, u32 mask) { return __uint_as_float(__float_as_uint(x) & mask); }

// Makes the generator's calls of a warp, for tiles of a head and a batch index. Values that follow from the lane are
// derived again for every draw, from the `lane` that the drawing code sets: kept in registers across loops they would
// spill.
template <WeightRows rows>
struct DropoutCalls {
  FourWords key;
  u32 b, h, lane;

  __device__ FourWords call(u32 query_tile, u32 key_tile) const {
    return dropout_call(key, b, h, dropout_counter_of_query<rows>(query_tile, lane),
                        dropout_counter_of_key<rows>(key_tile, lane));
  }
  __device__ TileNumbers exchanged(const TileNumbers& of_call) const {
    CallHalves halves = halves_of_call(of_call, lane);
    halves.other = __shfl_xor_sync(0xffffffff, halves.other, 4);
    return numbers_of_halves(halves, lane);
  }
  // Draws the numbers of tiles that lie side by side and one below the other. `first_row` and `first_column` number the
  // first tile. Its number along the keys is a multiple of the number of tiles of keys.
  template <int row_tiles, int column_tiles>
  __device__ void draw(TileNumbers (&numbers)[row_tiles][column_tiles], u32 first_row, u32 first_column) const {
    constexpr bool kQueries = rows == WeightRows::queries;
    constexpr int kKeyTiles = kQueries ? column_tiles : row_tiles, kQueryTiles = kQueries ? row_tiles : column_tiles;
    constexpr int kStep = kKeyTiles % 2 == 0 ? 2 : 1;  // This number of tiles shares a call.
    const u32 first_query = kQueries ? first_row : first_column, first_key = kQueries ? first_column : first_row;
#pragma unroll
    for (int i = 0; i < kQueryTiles; ++i)
#pragma unroll
      for (int j = 0; j < kKeyTiles; j += kStep) {
        const FourWords words = call(first_query + i, first_key + j);
#pragma unroll
        for (int t = 0; t < kStep; ++t) {
          const TileNumbers of_call = numbers_of_call(words, kStep == 2 ? t : first_key + j);
          if constexpr (kQueries) numbers[i][j + t] = of_call;
          else numbers[j + t][i] = exchanged(of_call);
        }
      }
  }
};

// Keeps ptxas from moving the draw to where the numbers are used.
template <int tiles>
__device__ inline void pin_numbers(TileNumbers (&numbers)[1][tiles]) {
#pragma unroll
  for (TileNumbers& tile : numbers[0]) tile.word[0] = recompute(tile.word[0]), tile.word[1] = recompute(tile.word[1]);
}

// Sets dropped weights of an operand to 0.
template <WeightRows rows>
__device__ inline void drop(u32 (&p)[4], const TileNumbers& numbers) {
#pragma unroll
  for (int i = 0; i < 4; ++i) p[i] &= mask_of_operand<rows, config.dropped>(numbers, i);
}
template <WeightRows rows, int tiles>
__device__ inline void drop(u32 (&p)[tiles][4], const TileNumbers (&numbers)[1][tiles]) {
#pragma unroll
  for (int i = 0; i < tiles; ++i) drop<rows>(p[i], numbers[0][i]);
}

// Computes x += a * b and y += c * d for the two weights in register i of an operand, each where its weight is kept,
// ...
template <WeightRows rows>
__device__ inline void add_kept_products(const TileNumbers& numbers, int i, float& x, float& y, float a, float c,
                                         float b, float d) {
  asm("{\n.reg .pred p, q;\n.reg .b32 positive;\nabs.f16x2 positive, %2;\nsetp.geu.f16x2 p|q, positive, %3;\n"
      "@p fma.rn.f32 %0, %4, %5, %0;\n@q fma.rn.f32 %1, %6, %7, %1;\n}"
      : "+f"(x), "+f"(y)
      : "r"(comparable<config.dropped>(numbers_of_operand<rows>(numbers, i))), "r"(kDroppedBelow<config.dropped>),
        "f"(a), "f"(b), "f"(c), "f"(d));
}
// ... and this function changes the sign of x or y where its weight is dropped.
template <WeightRows rows>
__device__ inline void negate_dropped(const TileNumbers& numbers, int i, float& x, float& y) {
  asm("{\n.reg .pred p, q;\n.reg .b32 positive;\nabs.f16x2 positive, %2;\nsetp.geu.f16x2 p|q, positive, %3;\n"
      "@!p neg.f32 %0, %0;\n@!q neg.f32 %1, %1;\n}"
      : "+f"(x), "+f"(y)
      : "r"(comparable<config.dropped>(numbers_of_operand<rows>(numbers, i))), "r"(kDroppedBelow<config.dropped>));
}

}  // namespace flashjit
