// Computes the scores of an index, on every GPU and for every dtype: 64 queries of one head after the other are
// multiplied by 64 keys, and positive products times the weight of their head are added up in registers.
#pragma once

#include "templates/index/work.cuh"
#include "templates/tile_copy.cuh"

namespace flashjit {

// Computes s = queries keys^T for the 16 rows of a warp.
__device__ inline void multiply_tiles(float (&s)[kIndexTile / 8][4], u32 queries, u32 keys) {
  constexpr TileLayout kTile = tile_layout(kIndexTile, padded_dim_qk(config), config.element);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int step = 0; step < padded_dim_qk(config) / step_columns(config.element); ++step) {
    u32 a[4];
    load_matrices(a, queries + kTile.offset(warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
    for (int n = 0; n < kIndexTile / 16; ++n) {
      u32 b[4];
      load_matrices(b, keys + kTile.offset(n * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
      mma<config.element>(s[2 * n], a, b[0], b[1]);
      mma<config.element>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

struct TileSums {
  float of[kIndexTile / 8][4];
};

// Adds the products of a head whose queries are in shared memory.
__device__ inline void add_head(TileSums& sums, u32 queries, u32 keys, const float (&weight)[2]) {
  float s[kIndexTile / 8][4] = {};
  multiply_tiles(s, queries, keys);
#pragma unroll
  for (int j = 0; j < kIndexTile / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums.of[j][e] += fmaxf(s[j][e], 0.0f) * weight[e / 2];
}

// Returns the scale of a key of the sequence.
__device__ inline float scale_of_key(const KernelParams& params, const Sequence& seq, int key) {
  if constexpr (!is_scaled(config)) return 1.0f;
  else if constexpr (!has_key_scales(config)) return scale_of(params.scale_k, params.scale_k_stride, seq.b, seq.hk, 0);
  else return key_scale(params, params.scale_k, params.scale_k_stride, seq, key);
}

__device__ inline void store_tile(const KernelParams& params, float* scores, const IndexWork& w, int k_lo,
                                  const TileSums& sums) {
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const int q = w.q_lo + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + h * 8;
    if (q >= w.seq.q_len) continue;
    float* const row = scores_of(params, scores, w.seq, q);
#pragma unroll
    for (int j = 0; j < kIndexTile / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = k_lo + j * 8 + threadIdx.x % 4 * 2 + e;
        if (key >= params.k_len) continue;
        const float sum = h ? sums.of[j][2 + e] : sums.of[j][e];
        row[key] = is_hidden(params, w.seq, q, key) ? -kInfinity : sum * scale_of_key(params, w.seq, key);
      }
  }
}

__device__ inline void index_tiles(const KernelParams& params, float* scores) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr TileLayout kTile = tile_layout(kIndexTile, padded_dim_qk(config), config.element);
  const IndexWork w = index_work(params);
  const auto* q = static_cast<const Asked*>(params.q);
  const auto* k = static_cast<const Cached*>(params.k) + key_begin(params.k_stride, w.seq);
  const u32 queries = shared_address(shared), keys = queries + kTile.bytes();
  const int row = w.q_lo + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  for (int tile = w.first; tile < w.end; ++tile) {
    const int k_lo = tile * kIndexTile;
    TileSums sums = {};
    __syncthreads();  // Every warp has finished with the tile before.
    copy_tile<kIndexThreads, kIndexTile, config.head_dim_qk, config.copy_bytes>(
        keys, key_rows(params, params.k_stride, k, w.seq), k_lo, w.seq.k_len);
    for (int h = w.seq.h; h < w.seq.h + group_size(config); ++h) {
      __syncthreads();
      copy_tile<kIndexThreads, kIndexTile, config.head_dim_qk, config.copy_bytes, config.queries>(
          queries, StridedRows<Asked>{q + query_row(params.q_stride, w.seq, h, 0), params.q_stride.token}, w.q_lo,
          w.seq.q_len);
      commit_copies();
      float weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int of = min(row + i * 8, w.seq.q_len - 1);
        weight[i] = weights_of(params, w.seq, of)[h - w.seq.h];
      }
      wait_copies<0>();
      __syncthreads();
      add_head(sums, queries, keys, weight);
    }
    store_tile(params, scores, w, k_lo, sums);
  }
  visit_unseen(params, scores, w, [](float* of_query, int first, int end) {
    for (int key = first + static_cast<int>(threadIdx.x); key < end; key += kIndexThreads) of_query[key] = -kInfinity;
  });
}

}  // namespace flashjit
