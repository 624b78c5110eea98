// The vocabulary of the warpgroup that makes dQ in a block of a cluster: from the keys of both blocks, in half of the
// columns.
#pragma once

#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

// The number of columns that are summed at a time: registers suffice for those of one panel.
constexpr int kDqAtATime = 64;

__device__ inline void add_panel(float* to, const float (&sums)[kDqAtATime / 2]) {
  to += recompute(threadIdx.x) % kThreadsPerWarpgroup * 4;
#pragma unroll
  for (int j = 0; j < kDqAtATime / 8; ++j)
    add_to_global(to + j * 4 * kThreadsPerWarpgroup, sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
}

struct QueryGradientsState {
  const SharedMemory& shared;
  float* dq_sums;
  float sums[kDqAtATime / 2];

  // Returns which tile of queries dS in this slot belongs to.
  __device__ int tile_of(u32 slot) const {
    int tile = 0;
    if (lane_id() == 0) tile = static_cast<int>(load_shared_word(shared.tile_number(slot)));
    return __shfl_sync(0xffffffff, tile, 0);
  }
  // Return the panels of K by which dS is multiplied: of this block's keys and of the other block's, in the columns of
  // dQ that this block makes.
  __device__ u32 own_columns(int panel) const {
    return descriptor(shared.k() + (cluster_rank() * kDqPanels + panel) * kLayout.k.panel_bytes());
  }
  __device__ u32 columns_of_other(int panel) const {
    return descriptor(shared.other_k() + panel * kLayout.k.panel_bytes());
  }
  // Both blocks learn that dS has been read.
  __device__ void release_ds(u32 slot) const {
    if (lane_id() > 0) return;
    arrive(shared.ds_empty(slot));
    arrive_in(shared.ds_empty(slot), cluster_rank() ^ 1);
  }
};

}  // namespace flashjit
