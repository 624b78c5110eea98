// The producer of the backward loop: one warp that copies K and V of an item, and Q, dO and row terms as far ahead as
// the ring allows.
#pragma once

#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// A tile of K or V, and one of Q or dO: panel by panel, in the boxes of its map. Those of queries have the rows of a step.
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
  arrive_expecting(barrier, panels.bytes());
  copy_key_rows(to, panels, map, barrier, item.seq, item.k_lo + static_cast<int>(first_key_of_block()), kEvictFirst);
}

// In a cluster, K of the other block, in the columns of dQ that this one makes.
__device__ inline void copy_other_keys(const TensorMaps& maps, const SharedMemory& shared, const BackwardItem& item) {
  const int panels = dq_panels(), first = static_cast<int>(cluster_rank()) * kDqPanels;
  const int key = item.k_lo + block_keys(config) - static_cast<int>(first_key_of_block());
  arrive_expecting(shared.other_k_full(), panels * kLayout.k.panel_bytes());
  for (int panel = 0; panel < panels; ++panel)
    copy_keys(shared.other_k() + panel * kLayout.k.panel_bytes(), maps.k, shared.other_k_full(), item.seq,
              (first + panel) * kLayout.k.panel_columns(), key);
}

// Brings to L2 what the score reads at the queries of a step, of all keys: there is one place for it, and from memory it
// would come too late.
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

// What the score reads at every query and key of a step, for each warpgroup its keys: as soon as it has read what it needs
// for the step before, which is after Q of the one before that is free.
__device__ inline void copy_inputs(const KernelParams& params, const TensorMaps& maps, const SharedMemory& shared,
                                   const BackwardItem& item, const Steps& at, int step) {
  Sequence seq = item.seq;
  seq.h = at.head;
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

// A warp, of which the first lane copies.
struct Producer {
  const KernelParams& params;
  const TensorMaps& maps;
  const char* row_terms;
  const SharedMemory& shared;
  int step = 0;  // of all items

  __device__ static bool leads() { return lane_id() == 0; }

  __device__ void copy_queries(const Sequence& seq, const Steps& at) const {
    const u32 stage = step % kStages, full = shared.q_full(stage);
    wait_barrier(shared.q_empty(stage), step / kStages % 2 ^ 1);
    if (leads()) {
      arrive_expecting(full, kLayout.q.bytes() + row_terms_bytes(config) + (kInClusters ? 0 : kLayout.d_o.bytes()));
      copy_query_rows(shared.q(stage), kLayout.q, maps.q, maps.q_steps, full, seq, at.tile * kTileQ);
      copy_bytes(shared.terms(stage),
                 row_terms + workspace_tile(params, seq, at.head, at.tile) * row_terms_bytes(config),
                 row_terms_bytes(config), full);
    }
    if constexpr (kInClusters) {
      wait_barrier(shared.d_o_empty(step), step / kLayout.d_o_stages % 2 ^ 1);
      if (leads()) arrive_expecting(shared.d_o_full(step), kLayout.d_o.bytes());
    }
    if (leads())
      copy_query_rows(shared.d_o(step), kLayout.d_o, maps.o, maps.o_steps, kInClusters ? shared.d_o_full(step) : full,
                      seq, at.tile * kTileQ);
  }

  // Until there is room for K, or V, of this round.
  __device__ void wait_for_k_place(int round) const {
    if constexpr (!kTakesItems) return;
    if constexpr (kLayout.swaps) wait_barrier(shared.v_empty(), round % 2 ^ 1);
    else wait_barrier(shared.k_empty(round % kPlaces), round / kPlaces % 2 ^ 1);
  }
  __device__ void wait_for_v_place(int round) const {
    if constexpr (!kTakesItems) return;
    if constexpr (kLayout.swaps) wait_barrier(shared.k_empty(round % 2 ^ 1), (round + 1) / 2 % 2 ^ 1);
    else wait_barrier(shared.v_empty(), round % 2 ^ 1);
  }
  // That is free later than the place of the first queries.
  __device__ void copy_values(const BackwardItem& item, int round) const {
    wait_for_v_place(round);
    if (leads()) copy_key_tile(shared.v(round % kPlaces), kLayout.v, maps.v, shared.v_full(), item);
  }

  // All steps of an item, which there are, from `at` on.
  __device__ void copy_steps(BackwardItem& item, Steps& at, int round) {
    const u32 place = round % kPlaces;
    wait_for_k_place(round);
    if (leads()) copy_key_tile(shared.k(place), kLayout.k, maps.k, shared.k_full(place), item);
    if constexpr (!kTakesItems) copy_values(item, round);
    if constexpr (kInClusters) {
      if (leads()) copy_other_keys(maps, shared, item);
    }
    bool has_values = !kTakesItems;
    do {
      Sequence seq = item.seq;
      seq.h = at.head;
      copy_queries(seq, at);
      if constexpr (kHasInputs) {
        if (maps.has_inputs) copy_inputs(params, maps, shared, item, at, step);
      }
      ++step;
      if (!has_values) copy_values(item, round);
      has_values = true;
    } while (at.advance(params, item));
  }

  // The item of a block, where it has one alone.
  __device__ void copy_item(BackwardItem& item) {
    Steps at;
    if (at.begin(params, item)) copy_steps(item, at, 0);
  }

  // All items of a block.
  __device__ void run() {
#pragma unroll 1
    for (int round = 0;; ++round) {
      BackwardItem item;
      if (!wait_for_item(item, params, shared, round)) return;
      Steps at;
      if (at.begin(params, item)) {
        copy_steps(item, at, round);
      } else {
        wait_for_k_place(round);
        if (leads()) arrive(shared.k_full(round % kPlaces));
        wait_for_v_place(round);
        if (leads()) arrive(shared.v_full());
      }
      release(shared.item_empty(round % kItemPlaces));
      if (leads()) arrive(shared.item_wanted());
    }
  }
};

}  // namespace flashjit
