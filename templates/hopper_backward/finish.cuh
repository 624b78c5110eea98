// Scales the sums of dQ after the backward loop, and stores them in the type and memory that the call gives.
#pragma once

#include "templates/dropout.cuh"
#include "templates/hopper/device.cuh"
#include "templates/hopper_backward/output.cuh"
#include "templates/hopper_backward/tiles.cuh"

namespace flashjit {

constexpr float kScale = config.scale * kDropoutFactor;  // Sums are multiplied by it.

// Waits until all tiles of keys of the head are done. This cannot hang: all blocks of the launch before have begun, and
// none of them waits for this launch.
__device__ inline void wait_for_head(const KernelParams& params, const Sequence& seq, int* counters) {
  const int tiles = key_tiles(params) * params.parts;
  if (tiles == 0) return wait_for_launch_before();
  if (threadIdx.x == 0) {
    while (load_acquired(done_of(seq, counters)) < tiles) __nanosleep(2000);
  }
  __syncthreads();
}

// Each block stores a query tile of a head and batch index. Sums lie in the order in which warpgroups held them: four
// registers of thread t in group j are at (j * 128 + t) * 4. They are two neighbouring columns, of eight, of two rows.
__device__ inline void finish_backward(const KernelParams& params, const float* dq_sums, int* counters = nullptr) {
  // The numbers of column groups of a warpgroup.
  constexpr int kEights = dq_columns(config) / 8, kFours = (kEights + 3) / 4;
  const int number = counts_items(config) ? blockIdx.x : last_first();
  const auto [seq, tile] = query_tile(params, number);
  if constexpr (counts_items(config)) {
    wait_for_head(params, seq, counters);
    // The launch after this one must not begin before the launch before this one has ended.
    if (blockIdx.x == gridDim.x - 1) wait_for_launch_before();
  }
  const int warpgroup = threadIdx.x / kThreadsPerWarpgroup, thread = threadIdx.x % kThreadsPerWarpgroup;
  const auto* sums = reinterpret_cast<const float4*>(dq_sums + static_cast<Int64>(number) * dq_sum_floats(config)) +
                     warpgroup * kEights * kThreadsPerWarpgroup + thread;
  const bool columns = splits_dq_columns(config);
  const int row = thread / 32 * 16 + thread % 32 / 4 + (columns ? 0 : warpgroup * kRowsPerWarpgroup);
  const int first_column = columns ? warpgroup * dq_columns(config) : 0;
  const Int64 begin = query_row(params.dq_stride, seq, seq.h, tile * config.tile_q + row);
  const int left = seq.q_len - tile * config.tile_q - row;  // The number of rows from this thread's first row on.
#pragma unroll
  for (int four = 0; four < kFours; ++four) {
    float4 sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int eight = four * 4 + i;
      if (eight < kEights && first_column + eight * 8 < config.head_dim_qk) sum[i] = sums[eight * kThreadsPerWarpgroup];
      else sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Int64 at = begin + h * 8 * params.dq_stride.token;
      if constexpr (config.output_dq == Element::f32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = first_column + (four * 4 + i) * 8 + thread % 4 * 2;
          if (four * 4 + i >= kEights || column >= config.head_dim_qk || left <= 8 * h) continue;
          store_pair<config.output_dq>(params.dq, at + column, (h == 0 ? sum[i].x : sum[i].z) * kScale,
                                       (h == 0 ? sum[i].y : sum[i].w) * kScale);
        }
      } else {
        u32 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          pairs[i] =
              pack<config.output_dq>((h == 0 ? sum[i].x : sum[i].z) * kScale, (h == 0 ? sum[i].y : sum[i].w) * kScale);
        exchange<1>(pairs);
        const int eight = four * 4 + thread % 4, column = first_column + eight * 8;
        if (eight >= kEights || column >= config.head_dim_qk || left <= 8 * h) continue;
        *reinterpret_cast<uint4*>(static_cast<u16*>(params.dq) + at + column) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
}

}  // namespace flashjit
