// The two products of the sync loop, in registers: S = Q K^T and O += P V.
#pragma once

#include "templates/sync/work.cuh"

namespace flashjit {

constexpr bool kQueriesInRegisters = config.sync.q_in == QueryStorage::registers;
constexpr int kMTiles = rows_per_warp(config) / 16;     // The 16-row tiles of a warp.
constexpr int kNTiles = kTileKv / 8;                    // The 8-column tiles of S.
constexpr int kSteps = padded_dim_qk(config) / kDepth;  // The k-steps of S = Q K^T.
constexpr int kOTiles = padded_slice(config) / 8;       // The 8-column tiles of O.

using Scores = float[kMTiles][kNTiles][4];
using Output = float[kMTiles][kOTiles][4];
using QueryFragments = u32[kMTiles][4];
constexpr int kHeldSteps = kQueriesInRegisters ? kSteps : 1;
using HeldQueries = QueryFragments[kHeldSteps];

__device__ inline u32 lane_id() { return threadIdx.x % 32; }
__device__ inline u32 warp_id() { return threadIdx.x / 32; }

// These return a lane's addresses in the tiles of Q, K and V: see tile_operands.cuh.
__device__ inline u32 query_lane(u32 queries) {
  return queries + kLayout.q.offset(warp_id() * rows_per_warp(config) + lane_id() % 16, lane_id() / 16);
}
__device__ inline u32 key_lane(u32 keys) {
  return keys + kLayout.k.offset(lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2);
}
__device__ inline u32 value_lane(u32 values) { return values + kLayout.v.offset(lane_id() % 16, lane_id() / 16); }

__device__ inline void clear(Scores& s) {
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int j = 0; j < kNTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][j][e] = 0;
}

// Computes S += Q K^T for one k-step.
__device__ inline void scores_step(Scores& s, const QueryFragments& q, u32 key_lane, int step) {
#pragma unroll
  for (int n = 0; n < kNTiles / 2; ++n) {
    u32 k[4];
    load_matrices(k, along(key_lane, kLayout.k, step) + down(kLayout.k, n));
#pragma unroll
    for (int i = 0; i < kMTiles; ++i) {
      multiply_scores(s[i][2 * n], q[i], k[0], k[1]);
      multiply_scores(s[i][2 * n + 1], q[i], k[2], k[3]);
    }
  }
}

__device__ inline void load_queries(QueryFragments& q, u32 query_lane, int step) {
#pragma unroll
  for (int i = 0; i < kMTiles; ++i) load_matrices(q[i], along(query_lane, kLayout.q, step) + down(kLayout.q, i));
}

// Computes S = Q K^T.
__device__ inline void compute_scores(Scores& s, const HeldQueries& held, u32 q_lane, u32 key_tile) {
  clear(s);
  if constexpr (kQueriesInRegisters) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) scores_step(s, held[step], key_tile, step);
  } else {
    const u32 query_tile = recompute(q_lane);
#pragma unroll config.sync.unroll_d
    for (int step = 0; step < kSteps; ++step) {
      QueryFragments fragments;
      load_queries(fragments, query_tile, step);
      scores_step(s, fragments, key_tile, step);
    }
  }
}

// Holds which weights of a tile are kept.
using Kept = TileNumbers[kMTiles][kTileKv / 16];

// Computes O += P V. The accumulator of S has the layout of operand P, so P never leaves registers.
__device__ inline void accumulate_output(Output& o, const Scores& p, const Kept& kept, u32 value_lane) {
#pragma unroll
  for (int step = 0; step < kTileKv / kDepth; ++step) {
    u32 a[kMTiles][4];
#pragma unroll
    for (int i = 0; i < kMTiles; ++i) {
      convert_weights(a[i], &p[i][step * kStepTiles]);
      if constexpr (kDrops) drop<WeightRows::queries>(a[i], kept[i][step]);
    }
#pragma unroll
    for (int n = 0; n < kOTiles / kStepTiles; ++n) {
      u32 v[kStepTiles][2];
      load_values(v, along(value_lane, kLayout.v, n) + down(kLayout.v, step * kStepTiles / 2));
#pragma unroll
      for (int i = 0; i < kMTiles; ++i)
#pragma unroll
        for (int j = 0; j < kStepTiles; ++j) multiply_values(o[i][n * kStepTiles + j], a[i], v[j][0], v[j][1]);
      // This is no instruction. Without it ptxas would have so many sums under way at once that registers spill.
      if constexpr (kNarrow) __syncwarp();
    }
  }
}

}  // namespace flashjit
