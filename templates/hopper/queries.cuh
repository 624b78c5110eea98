// Q as the first operand of scores. It is read from shared memory, or from registers (queries_in_registers).
#pragma once

#include "templates/hopper/scores.cuh"

namespace flashjit {

// Returns the address of the warpgroup's rows of Q, where Q begins at `address` in shared memory.
__device__ inline u32 own_rows(u32 address) { return address + warpgroup_id() * kRowsPerWarpgroup * kPanelWidth; }

// Multiplies Q, which begins at `queries` in shared memory, by K, which begins at `keys`.
template <bool in_registers>
struct QueryOperand {
  static constexpr int kSteps = padded_dim_qk(config) * size_of(config.element) / kStepBytes;
  u32 operand[kSteps][4];  // The rows of this item.

  // Loads four matrices of eight rows and 16 bytes a step: a warp's first and second eight rows, then the next 16 bytes
  // of these rows.
  __device__ void load_queries(u32 queries) {
    const u32 lane = lane_id(), row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    const u32 from = queries + (warpgroup_id() * kRowsPerWarpgroup + row) * kPanelWidth;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      load_matrices(operand[step], from + (lane / 16 + 2 * step ^ row % 8) * kChunkBytes);
  }
  template <class Sums>
  __device__ void multiply_queries(Sums& s, u32, u32 keys) const {
    multiply_scores(s, operand, descriptor(recompute(keys)));
  }
};
template <>
struct QueryOperand<false> {
  __device__ static void load_queries(u32) {}
  template <class Sums>
  __device__ static void multiply_queries(Sums& s, u32 queries, u32 keys) {
    multiply_scores(s, descriptor(recompute(own_rows(queries))), descriptor(recompute(keys)));
  }
};

}  // namespace flashjit
