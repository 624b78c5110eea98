// The producer's vocabulary: one warp copies K and V of an item, and Q, dO and row terms as far ahead as the ring
// allows. loop.gen.cuh determines what it does, and in which order.
#pragma once

#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// These functions copy a tile of K or V, and one of Q or dO, panel by panel, in the boxes of its map. Boxes of queries
// have the rows of a step.
__device__ inline void copy_key_rows(u32 to, const PanelLayout& panels, const TensorMap& map, u32 barrier,
                                     const Sequence& seq, int key, u64 policy) {
#pragma unroll
  for (int panel = 0; panel < panels.panels(); ++panel)
    copy_keys(to + panel * panels.panel_bytes(), map, barrier, seq, panel * panels.panel_columns(), key, policy);
}
__device__ inline void copy_query_rows(u32 to, const PanelLayout& panels, const TensorMap& map, const EndSteps& steps,
                                       u32 barrier, const Sequence& seq, int q) {
#pragma unroll
  for (int panel = 0; panel < panels.panels(); ++panel)
#pragma unroll
    for (int row = 0; row < panels.rows; row += kTileQ)
      copy_queries(to + panel * panels.panel_bytes() + row * kPanelWidth, map, steps, barrier, seq,
                   panel * panels.panel_columns(), q + row, kEvictLast);
}

__device__ inline void copy_key_tile(u32 to, const PanelLayout& panels, const TensorMap& map, u32 barrier,
                                     const BackwardItem& item) {
  copy_key_rows(to, panels, map, barrier, item.seq, item.k_lo + static_cast<int>(first_key_of_block()), kEvictFirst);
}

// Copies K of the other block of a cluster, in the columns of dQ that this block makes.
__device__ inline void copy_other_keys(const TensorMaps& maps, const SharedMemory& shared, const BackwardItem& item) {
  const int panels = dq_panels(), first = static_cast<int>(cluster_rank()) * kDqPanels;
  const int key = item.k_lo + block_keys(config) - static_cast<int>(first_key_of_block());
  for (int panel = 0; panel < panels; ++panel)
    copy_keys(shared.other_k() + panel * kLayout.k.panel_bytes(), maps.k, shared.other_k_full(), item.seq,
              (first + panel) * kLayout.k.panel_columns(), key);
}

// Prefetches to L2 what the score reads at the queries of a step, for all keys. Shared memory has only one slot for it,
// so a copy from memory would arrive too late.
__device__ inline void prefetch_inputs(const KernelParams& params, const TensorMaps& maps, const Sequence& seq, int key,
                                       int query) {
  Variant::visit_inputs(params, seq, [&](auto input, int x, int y) {
    constexpr int i = decltype(input)::value, keys = kPanelWidth / input_bytes_per_key(config, i);
#pragma unroll 1
    for (int k = 0; k < kTileKv; k += keys)
#pragma unroll
      for (int row = 0; row < kTileQ; row += input_rows(config, i))
        prefetch_box(maps.inputs[input_number(config, i)], key + k, query + row, x, y);
  });
}

// Copies what the score reads at every query and key of a step, for each warpgroup its keys. A warpgroup's slot is free
// once it has read the elements of the step before, which is after Q of an earlier step has become free.
__device__ inline void copy_inputs(const KernelParams& params, const TensorMaps& maps, const SharedMemory& shared,
                                   const BackwardItem& item, const Steps& at, int step) {
  const Sequence seq = at.sequence(item);
  if (lane_id() == 0) prefetch_inputs(params, maps, seq, item.k_lo, (at.tile + 1) * kTileQ);
#pragma unroll 1
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
    const u32 full = shared.inputs_full(warpgroup);
    wait_barrier(shared.inputs_empty(warpgroup), step % 2 ^ 1);
    if (lane_id() > 0) continue;
    constexpr int kBytes = tile_inputs_bytes(config);
    arrive_expecting(full, kBytes);
    Variant::visit_inputs(params, seq, [&](auto input, int x, int y) {
      constexpr int i = decltype(input)::value, keys = kPanelWidth / input_bytes_per_key(config, i),
                    number = input_number(config, i);
      u32 to = shared.inputs<i>(warpgroup);
#pragma unroll
      for (int key = 0; key < kRowsPerWarpgroup; key += keys)
#pragma unroll
        for (int row = 0; row < kTileQ; row += input_rows(config, i), to += input_rows(config, i) * kPanelWidth)
          copy_box(to, maps.inputs[number], full, kEvictNormal, item.k_lo + warpgroup * kRowsPerWarpgroup + key,
                   at.tile * kTileQ + row, x, y);
    });
  }
}

// The producer is a warp, and its first lane copies.
struct ProducerState {
  const KernelParams& params;
  const TensorMaps& maps;
  const char* row_terms;
  const SharedMemory& shared;
  int step = 0;  // Counts the steps of all items.

  __device__ static bool leads() { return lane_id() == 0; }
  __device__ const char* terms_of(const Sequence& seq, const Steps& at) const {
    return row_terms + workspace_tile(params, seq, at.head, at.tile) * row_terms_bytes(config);
  }
};

}  // namespace flashjit
