// Shared by the steps of the textbook versions: 64 x 64 tiles, multiplied by four warps of 16 rows each.
#pragma once

#include "templates/device.cuh"
#include "templates/dropout.h"
#include "templates/kv_rows.cuh"
#include "templates/naive/layout.h"
#include "templates/sequence.cuh"
#include "templates/tile_copy.cuh"

namespace flashjit {

__device__ inline WorkItem naive_item(const KernelParams& p, Int64 index, int per_head) {
  const int head = static_cast<int>(index / per_head);
  return {sequence_of(p, head / config.heads_q, head % config.heads_q), static_cast<int>(index % per_head)};
}

// Matrices of scores are [batch, head, q_len, k_len] with the launch's longest lengths.
__device__ inline Int64 naive_row(const KernelParams& p, const Sequence& seq, int q) {
  return (static_cast<Int64>(sequence_number(p, seq)) * config.heads_q + seq.h) * p.q_len + q;
}

// Returns whether the weight of a query and a key is dropped. Each weight takes a call of its own, so that comparisons
// show what the fused kernels save.
__device__ inline bool naive_drops(const FourWords& key, const Sequence& seq, int q, int k) {
  return is_dropped(dropout_number(dropout_words(key, seq.b, seq.h, q, k), q, k), config.dropped);
}

// Computes s += queries keys^T, both of `head_dim` columns.
template <int head_dim>
__device__ inline void naive_multiply_rows(float (&s)[kNaiveTile / 8][4], u32 queries, u32 keys) {
  constexpr TileLayout kTile = tile_layout(kNaiveTile, head_dim, config.element);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int step = 0; step < head_dim / step_columns(config.element); ++step) {
    u32 a[4];
    load_matrices(a, queries + kTile.offset(warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
    for (int n = 0; n < kNaiveTile / 16; ++n) {
      u32 b[4];
      load_matrices(b, keys + kTile.offset(n * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
      mma<config.element>(s[2 * n], a, b[0], b[1]);
      mma<config.element>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Computes sums += weights rows, for a 64 x 64 tile of weights as it lies, or transposed.
template <bool transposed, int columns>
__device__ inline void naive_multiply_weights(float (&sums)[columns][4], u32 weights, u32 rows) {
  constexpr TileLayout kWeights = tile_layout(kNaiveTile, kNaiveTile, config.element),
                       kRowTile = tile_layout(kNaiveTile, columns * 8, config.element);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int step = 0; step < kNaiveTile / 16; ++step) {
    u32 a[4];
    if constexpr (transposed) {
      load_matrices_transposed(
          a, weights + kWeights.offset(step * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
    } else {
      load_matrices(a, weights + kWeights.offset(warp * 16 + lane % 16, step * 2 + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < columns / 2; ++n) {
      u32 b[4];
      load_matrices_transposed(b, rows + kRowTile.offset(step * 16 + lane % 16, n * 2 + lane / 16));
      mma<config.element>(sums[2 * n], a, b[0], b[1]);
      mma<config.element>(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Computes sums += weights rows over all `count` rows of a head: for 64 rows of the matrix of weights from `lo` on, or,
// transposed, for 64 of its columns.
template <bool transposed, int head_dim, int columns, class Rows>
__device__ inline void naive_add_products(float (&sums)[columns][4], const KernelParams& params, const Sequence& seq,
                                          const u16* weights, int lo, const Rows& rows, int count) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 weight_tile = shared_address(shared),
            row_tile = weight_tile + tile_layout(kNaiveTile, kNaiveTile, config.element).bytes();
  const Int64 stride = naive_probability_stride(params.k_len);
  weights += naive_row(params, seq, 0) * stride;
#pragma unroll 1
  for (int i = 0; i < count; i += kNaiveTile) {
    __syncthreads();  // Every warp has finished with the tiles before.
    copy_tile<kNaiveThreads, kNaiveTile, kNaiveTile, 16>(
        weight_tile, StridedRows<u16>{weights + (transposed ? lo : i), stride}, transposed ? i : lo, seq.q_len);
    copy_tile<kNaiveThreads, kNaiveTile, head_dim, config.copy_bytes>(row_tile, rows, i, count);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    naive_multiply_weights<transposed>(sums, weight_tile, row_tile);
  }
}

// Stores 64 rows of a result from row_lo on, of which `count` exist, times `factor`.
template <Element output, int head_dim, int columns>
__device__ inline void naive_store(void* result, Int64 first, Int64 stride, const float (&sums)[columns][4],
                                   float factor, int row_lo, int count) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < columns; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = row_lo + warp * 16 + lane / 4 + e / 2 * 8, column = j * 8 + lane % 4 * 2 + e % 2;
      if (row >= count || column >= head_dim) continue;
      const Int64 at = first + row * stride + column;
      if constexpr (output == Element::f32) {
        static_cast<float*>(result)[at] = sums[j][e] * factor;
      } else {
        static_cast<u16*>(result)[at] = static_cast<u16>(pack<output>(sums[j][e] * factor, 0.0f));
      }
    }
}

}  // namespace flashjit
