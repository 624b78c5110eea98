// The producer: one warp that finds work and copies Q, K and V with TMA, as far ahead as the rings allow.
#pragma once

#include "templates/hopper_work.cuh"

namespace flashjit {

// Coordinates that end a packed sequence. Rows of the sequence lie at the end of a dimension of 2^30 rows, so that what is
// behind them is out of bounds (read as zeros) and not the next sequence; the dimensions after the head move that end to where
// the sequence ends in memory: kSequenceEnd steps of minus a row (2^35 bytes minus a row, modulo 2^64), then start + length
// steps of a row.
constexpr int kSequenceEnd = 1 << 30;

struct Producer {
  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;
  Ring<kQStages> q_ring = {};
  Ring<kStages> ring = {};  // of the next K
  u32 slot = 0;             // of the work state
  int waiting_slot = -1;    // the item, -1 for none, and the tile whose V is to be copied next
  int waiting_tile = 0;
  int round = 0;            // items that were dealt to this block

  // A tile of K or V. In a cluster each block copies its share of the rows to all blocks.
  template <class Panels>
  __device__ void copy_rows(u32 to, const Panels& panels, const TensorMap& map, u32 barrier, const WorkState& work, int row) {
    constexpr int kRows = kTileKv / kCluster;
    const u32 block = kCluster > 1 ? block_in_cluster() : 0;
#pragma unroll
    for (int panel = 0; panel < panels.panels(); ++panel) {
      const u32 target = to + panel * panels.panel_bytes() + block * kRows * panels.width();
      const int column = panel * panels.width() / 2, at = row + block * kRows;
      const Sequence& seq = work.seq;
      if constexpr (config.packed) {
        copy_box(target, map, barrier, kEvictLast, column, kSequenceEnd - seq.k_len + at, seq.hk,
                 static_cast<int>(seq.k_token) + seq.k_len, kSequenceEnd);
      } else if constexpr (kCluster > 1) {
        copy_box_to_blocks(target, map, barrier, kEvictLast, (1 << kCluster) - 1, column, at, seq.hk, seq.b);
      } else {
        copy_box(target, map, barrier, kEvictLast, column, at, seq.hk, seq.b);
      }
    }
  }

  // V follows one tile behind K, also from one item to the next: it is needed when the scores of the next tile are on their way.
  __device__ void copy_tile(const WorkState& work, int tile) {
    wait_barrier(shared.k_empty(ring.stage()), ring.parity() ^ 1);
    arrive_expecting(shared.k_full(ring.stage()), kLayout.k.bytes());
    copy_rows(shared.k(ring.stage()), kLayout.k, maps.k, shared.k_full(ring.stage()), work, tile * kTileKv);
    copy_waiting_values();
    ring.advance();
    waiting_slot = slot == 0 ? kWorkSlots - 1 : slot - 1;  // the item was announced
    waiting_tile = tile;
  }

  __device__ void copy_waiting_values() {
    if (waiting_slot < 0) return;
    const Ring<kStages> at = ring.previous();
    wait_barrier(shared.v_empty(at.stage()), at.parity() ^ 1);
    arrive_expecting(shared.v_full(at.stage()), kLayout.v.bytes());
    copy_rows(shared.v(at.stage()), kLayout.v, maps.v, shared.v_full(at.stage()), shared.work(waiting_slot), waiting_tile * kTileKv);
    waiting_slot = -1;
  }

  __device__ void copy_queries(u32 to, u32 barrier, const WorkState& work) {
    const Sequence& seq = work.seq;
#pragma unroll
    for (int panel = 0; panel < kLayout.q.panels(); ++panel) {
      const u32 target = to + panel * kLayout.q.panel_bytes();
      const int column = panel * kLayout.q.width() / 2;
      if constexpr (config.pack_heads) {
        copy_box(target, maps.q, barrier, kEvictFirst, column, 0, work.q_lo, seq.hk, seq.b);
      } else if constexpr (config.packed) {
        copy_box(target, maps.q, barrier, kEvictFirst, column, kSequenceEnd - seq.q_len + work.q_lo, seq.h,
                 static_cast<int>(seq.q_token) + seq.q_len, kSequenceEnd);
      } else {
        copy_box(target, maps.q, barrier, kEvictFirst, column, work.q_lo, seq.h, seq.b);
      }
    }
  }

  // Tells the consumers what comes next; with an item that sees any key goes Q.
  __device__ void announce(const WorkState& work) {
    wait_barrier(shared.q_empty(q_ring.stage()), q_ring.parity() ^ 1);
    const u32 full = shared.q_full(q_ring.stage());
    if (has_tiles(work)) {
      arrive_expecting(full, kLayout.q.bytes());
      copy_queries(shared.q(q_ring.stage()), full, work);
    } else {
      arrive(full);
    }
    q_ring.advance();
    slot = next_slot();
  }
  __device__ u32 next_slot() const { return slot + 1 == kWorkSlots ? 0 : slot + 1; }

  __device__ void announce(Work kind) {
    wait_barrier(shared.q_empty(q_ring.stage()), q_ring.parity() ^ 1);  // whoever read this slot is done
    WorkState& work = shared.work(slot);
    work.kind = kind;
    announce(work);
  }

  // Copies an item. `prepare` is called early in it, to find the next one while there is time.
  template <class Prepare>
  __device__ void produce(const WorkState& work, const Prepare& prepare) {
    // The only Q is free again when the last scores of the item before are there; its last V must not wait for that.
    if constexpr (kQStages == 1) copy_waiting_values();
    announce(work);
    int tile = work.last_tile;
    if (tile >= work.first_tile) copy_tile(work, tile);
    prepare();
    if (tile < work.first_tile) return;
#pragma unroll 1
    while ((tile = visible_tile(params, work, tile - 1)) >= work.first_tile) copy_tile(work, tile);
  }

  // The next item of this block. Items are taken from a counter, so that blocks which are done early take more. Without a counter
  // they are dealt out, back and forth, because each round's items become shorter from block to block.
  __device__ int next_rank(int items) {
    const int clusters = gridDim.x / kCluster, cluster = blockIdx.x / kCluster;
    const int dealt = round++;
    if (dealt == 0) return cluster;
    if (!config.persistent) return items;
    if (kCluster == 1 && params.work_counters) return clusters + atomicAdd(params.work_counters, 1);
    return dealt * clusters + (dealt % 2 == 1 ? clusters - 1 - cluster : cluster);
  }

  // Writes its state to the current slot; false when there is none.
  __device__ bool find_next() {
    const int items = params.tiles_q * kHeads * params.batch;
    int rank;
    do {
      rank = next_rank(items);
      if (rank >= items) return false;
    } while (!find_work(shared.work(slot), params, rank));
    return true;
  }

  // The last block leaves the counters as it found them.
  __device__ void return_counters() {
    __threadfence();
    if (atomicAdd(params.work_counters + 1, 1) != static_cast<int>(gridDim.x) - 1) return;
    params.work_counters[0] = 0;
    params.work_counters[1] = 0;
  }

  // Items whose first reference did not hold, again and carefully. Consumers are careful from their first failure on, so there
  // is at most one for each warpgroup.
  __device__ void produce_again() {
    announce(Work::flush);
    wait_barrier(shared.flushed(), 0);
    for (int i = 0; i < kRedoPlaces; ++i) {
      const int rank = shared.redo(i);
      bool seen = rank < 0;
      for (int j = 0; j < i; ++j) seen |= shared.redo(j) == rank;
      if (seen) continue;
      WorkState& work = shared.work(slot);
      find_work(work, params, rank);
      work.kind = Work::careful_item;
      produce(work, [] {});
    }
    copy_waiting_values();
  }

  __device__ void run() {
    bool found = find_next();
#pragma unroll 1
    while (found) {
      produce(shared.work(slot), [&] { found = find_next(); });
    }
    copy_waiting_values();
    if (config.persistent && kCluster == 1 && params.work_counters) return_counters();
    if constexpr (config.reference != Reference::tile) produce_again();
    announce(Work::end);
  }
};

}  // namespace flashjit
