// The producer of the backward loop: one thread that copies K and V once, then Q, dO and row terms as far ahead as the
// ring allows.
#pragma once

#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// A tile of K or V, and one of Q or dO: panel by panel, in the boxes of its map.
__device__ inline void copy_key_rows(u32 to, const PanelLayout& panels, const TensorMap& map, u32 barrier,
                                     const Sequence& seq, int key, u64 policy) {
  constexpr int kRows = key_box_rows(config);
#pragma unroll
  for (int panel = 0; panel < panels.panels(); ++panel)
#pragma unroll
    for (int row = 0; row < panels.rows; row += kRows)
      copy_keys(to + panel * panels.panel_bytes() + row * kPanelWidth, map, barrier, seq,
                panel * panels.panel_columns(), key + row, policy);
}
__device__ inline void copy_query_rows(u32 to, const PanelLayout& panels, const TensorMap& map, const EndSteps& steps,
                                       u32 barrier, const Sequence& seq, int q) {
  constexpr int kRows = query_box_rows(config);
#pragma unroll
  for (int panel = 0; panel < panels.panels(); ++panel)
#pragma unroll
    for (int row = 0; row < panels.rows; row += kRows)
      copy_queries(to + panel * panels.panel_bytes() + row * kPanelWidth, map, steps, barrier, seq,
                   panel * panels.panel_columns(), q + row, kEvictLast);
}

__device__ inline void copy_key_tile(u32 to, const PanelLayout& panels, const TensorMap& map, u32 barrier,
                                     const BackwardItem& item) {
  arrive_expecting(barrier, panels.bytes());
  copy_key_rows(to, panels, map, barrier, item.seq, item.k_lo, kEvictFirst);
}

__device__ inline void produce(const KernelParams& params, const TensorMaps& maps, const char* row_terms,
                               const SharedMemory& shared, BackwardItem& item) {
  Steps at;
  if (!at.begin(params, item)) return;
  copy_key_tile(shared.k(), kLayout.k, maps.k, shared.k_full(), item);
  copy_key_tile(shared.v(), kLayout.v, maps.v, shared.v_full(), item);
  Sequence seq = item.seq;
  int step = 0;
  do {
    const u32 stage = step % kStages, full = shared.q_full(stage);
    wait_barrier(shared.q_empty(stage), step / kStages % 2 ^ 1);
    arrive_expecting(full, kLayout.q.bytes() + kLayout.d_o.bytes() + row_terms_bytes(config));
    seq.h = at.head;
    copy_query_rows(shared.q(stage), kLayout.q, maps.q, maps.q_steps, full, seq, at.tile * kTileQ);
    copy_bytes(shared.terms(stage), row_terms + workspace_tile(params, seq, at.head, at.tile) * row_terms_bytes(config),
               row_terms_bytes(config), full);
    copy_query_rows(shared.d_o(stage), kLayout.d_o, maps.o, maps.o_steps, full, seq, at.tile * kTileQ);
    ++step;
  } while (at.advance(params, item));
}

}  // namespace flashjit
