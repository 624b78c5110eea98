// The warpgroup of a cluster's block that makes dQ: of the keys of both blocks, in half of the columns.
#pragma once

#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

// Columns that are summed at a time: registers are left for those of a panel.
constexpr int kDqAtATime = 64;

__device__ inline void add_panel(float* to, const float (&sums)[kDqAtATime / 2]) {
  to += recompute(threadIdx.x) % kThreadsPerWarpgroup * 4;
#pragma unroll
  for (int j = 0; j < kDqAtATime / 8; ++j)
    add_to_global(to + j * 4 * kThreadsPerWarpgroup, sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
}

// (A template: its products exist in clusters only.)
template <int columns = kDqAtATime>
__device__ inline void add_query_gradients(const SharedMemory& shared, float* dq_sums) {
  float sums[columns / 2];
  const u32 rank = cluster_rank();
  const int panels = dq_panels();
  const auto release_ds = [&](u32 slot) {
    if (lane_id() > 0) return;
    arrive(shared.ds_empty(slot));
    arrive_in(shared.ds_empty(slot), rank ^ 1);
  };
#pragma unroll 1
  for (int number = 0;; ++number) {
    const u32 slot = number % kDsStages, parity = number / kDsStages % 2;
    wait_barrier(shared.ds_full(slot), parity);
    int tile = 0;
    if (lane_id() == 0) tile = static_cast<int>(load_shared_word(shared.tile_number(slot)));
    tile = __shfl_sync(0xffffffff, tile, 0);
    if (tile == static_cast<int>(kNoTile)) break;
    if (number == 0) {
      wait_barrier(shared.k_full(), 0);
      wait_barrier(shared.other_k_full(), 0);
    }
    float* to =
        dq_sums + static_cast<Int64>(tile) * dq_sum_floats(config) + rank * (kRowsPerWarpgroup * dq_columns(config));
#pragma unroll 1
    for (int panel = 0; panel < panels; ++panel) {
      begin_products();
      multiply_dq(sums, descriptor(shared.ds(slot)),
                  descriptor(shared.k() + (rank * kDqPanels + panel) * kLayout.k.panel_bytes()));
      if (panel == 0) wait_barrier(shared.other_ds_full(slot), parity);
      multiply_dq_of_other(sums, descriptor(shared.other_ds(slot)),
                           descriptor(shared.other_k() + panel * kLayout.k.panel_bytes()));
      commit_products();
      if (kOrdered && panel == 0) wait_barrier(shared.turn(slot), parity);
      wait_products<0>();
      pin_registers(sums);
      if (panel == panels - 1) release_ds(slot);
      add_panel(to + panel * (kRowsPerWarpgroup * columns), sums);
    }
    if (panels == 0) release_ds(slot);
    if constexpr (kOrdered) {
      __syncwarp();
      release(shared.added(slot));
    }
  }
}

}  // namespace flashjit
