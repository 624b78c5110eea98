// Operands of the sync loop's matrix instructions, with elements of 16 bits and of 8, and the columns of O that they
// give.
#pragma once

#include "templates/sync/layout.h"
#include "templates/tile_operands.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr SyncLayout kLayout = sync_layout(config);
constexpr bool kNarrow = config.element == Element::f8;
// The depth of an instruction: columns of Q and K, keys of P and V.
constexpr int kDepth = step_columns(config.element);
constexpr int kStepTiles = kDepth / 8;  // A step of P V takes these tiles of S, and a load serves these tiles of O.

// P of e4m3 ends at 448 and at 2^-9. It is 2^kWeightExponent times the weight, and the row sum is divided by the same factor. A
// reference may be too low by 2^kRescaleThreshold (softmax.cuh), so P is 256 at most.
constexpr float kWeightExponent = kNarrow ? 5.0f : 0.0f;
constexpr float kWeightUnit = kNarrow ? 0x1p-5f : 1.0f;

__device__ inline void multiply_scores(float (&s)[4], const u32 (&q)[4], u32 k0, u32 k1) {
  if constexpr (kNarrow) mma_narrow<config.queries, config.cache>(s, q, k0, k1);
  else mma<config.element>(s, q, k0, k1);
}
// sm_89 adds up products of 8 bits with some 13 bits, and the sum so far is one of the terms: over thousands of keys O
// would be percents off. So each instruction starts from zero, and additions of fp32 bring its 32 keys into O.
__device__ inline void multiply_values(float (&o)[4], const u32 (&p)[4], u32 v0, u32 v1) {
  if constexpr (kNarrow) {
    float sum[4] = {};
    mma_narrow<Narrow::e4m3, config.cache>(sum, p, v0, v1);
#pragma unroll
    for (int e = 0; e < 4; ++e) o[e] += sum[e];
  } else {
    mma<config.element>(o, p, v0, v1);
  }
}

// Converts P of a step. An operand of 8 bits has four keys side by side: two of one tile of S that a thread has, and
// two of the next. V comes with its keys in the same order.
__device__ inline void convert_weights(u32 (&a)[4], const float (*p)[4]) {
  if constexpr (kNarrow) {
    a[0] = pack_e4m3(p[0][0], p[0][1], p[1][0], p[1][1]);
    a[1] = pack_e4m3(p[0][2], p[0][3], p[1][2], p[1][3]);
    a[2] = pack_e4m3(p[2][0], p[2][1], p[3][0], p[3][1]);
    a[3] = pack_e4m3(p[2][2], p[2][3], p[3][2], p[3][3]);
  } else {
    a[0] = pack<config.element>(p[0][0], p[0][1]);
    a[1] = pack<config.element>(p[0][2], p[0][3]);
    a[2] = pack<config.element>(p[1][0], p[1][1]);
    a[3] = pack<config.element>(p[1][2], p[1][3]);
  }
}

// Loads V of a step, for kStepTiles tiles of O. Transposed, 16 bits are two columns of a key of 8 bits: columns of even
// number belong to a tile of O, and columns of odd number to the next.
__device__ inline void load_values(u32 (&v)[kStepTiles][2], u32 address) {
  if constexpr (kNarrow) {
    constexpr u32 kEven = 0x6420, kOdd = 0x7531;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // It is a half of the keys.
      u32 pairs[4];
      load_matrices_transposed(pairs, address + down(kLayout.v, half));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        v[2 * j][half] = __byte_perm(pairs[2 * j], pairs[2 * j + 1], kEven);
        v[2 * j + 1][half] = __byte_perm(pairs[2 * j], pairs[2 * j + 1], kOdd);
      }
    }
  } else {
    u32 matrices[4];
    load_matrices_transposed(matrices, address);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      v[j][0] = matrices[2 * j];
      v[j][1] = matrices[2 * j + 1];
    }
  }
}

// Returns the first of two neighbouring columns of O that a thread has in tile j, for each of its two rows, after
// sort_columns().
__device__ inline int first_column(int j) {
  const int lane = threadIdx.x % 4;
  return kNarrow ? j / 2 * 16 + lane * 4 + j % 2 * 2 : j * 8 + lane * 2;
}
// With elements of 8 bits a tile has every other column. A thread's four columns are in two tiles, and this sorts them.
template <int tiles>
__device__ inline void sort_columns(float (&o)[tiles][4]) {
  if constexpr (kNarrow) {
#pragma unroll
    for (int j = 0; j < tiles; j += 2)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float odd = o[j + 1][2 * h];
        o[j + 1][2 * h] = o[j][2 * h + 1];
        o[j][2 * h + 1] = odd;
      }
  }
}

}  // namespace flashjit
