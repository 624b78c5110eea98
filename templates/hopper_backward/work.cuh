// Backward for sm_90a: which keys a block has, which queries it goes over, and the barriers between its warpgroups.
#pragma once

#include "templates/hopper/device.cuh"
#include "templates/hopper/rows.cuh"
#include "templates/hopper_backward/layout.h"
#include "variant.gen.cuh"

namespace flashjit {

constexpr BackwardLayout kLayout = backward_layout(config);
constexpr int kTileQ = config.tile_q, kTileKv = config.tile_kv;
constexpr int kStages = config.stages, kWarpgroups = config.warpgroups;
constexpr int kConsumerWarps = kWarpgroups * 4;
constexpr bool kHasRoles = has_roles(config);
constexpr int kExchangingWarps = kHasRoles ? 4 : kConsumerWarps;  // that write one, and that read it
constexpr int kGroup = group_size(config);
constexpr int kTurnBarrier = 1;  // named barriers, one per consumer warpgroup: it is its turn

// The number of a query tile of a head among those of all: where its part of the workspace is.
__device__ inline Int64 workspace_tile(const KernelParams& params, const Sequence& seq, int head, int tile) {
  return (static_cast<Int64>(seq.b) * config.heads_q + head) * params.tiles_q + tile;
}

// A tile of keys, and the query tiles that see any of it: for each query head of its KV head all of `first`..`last`. In
// `full_first`..`full_last` all queries see all keys, and no mask code is needed.
struct BackwardItem {
  Sequence seq;
  int k_lo;
  int first, last, full_first, full_last;
  __device__ int tiles() const { return max(last - first + 1, 0); }
};

// Tiles of a head follow each other, so that those which run together share Q and dO in L2; with a causal mask the first
// tile has most queries.
__device__ inline BackwardItem backward_item(const KernelParams& params, int block) {
  const int tiles = (params.k_len + kTileKv - 1) / kTileKv, head = block / tiles;
  BackwardItem item;
  item.seq = sequence_of(params, head / config.heads_kv, head % config.heads_kv * kGroup);
  item.k_lo = block % tiles * kTileKv;
  const int k_hi = min(item.k_lo + kTileKv, item.seq.k_len) - 1;
  const int begin = Variant::q_begin(params, item.seq, item.k_lo, k_hi),
            end = Variant::q_end(params, item.seq, item.k_lo, k_hi);
  item.first = begin / kTileQ;
  item.last = begin < end && item.k_lo <= k_hi ? (end - 1) / kTileQ : item.first - 1;
  item.full_first = (Variant::full_q_begin(params, item.seq, item.k_lo, k_hi) + kTileQ - 1) / kTileQ;
  const int full_end = Variant::full_q_end(params, item.seq, item.k_lo, k_hi);
  // Queries behind the last one count for nothing, whatever they see; keys behind the last one would.
  item.full_last = full_end >= item.seq.q_len ? item.last : full_end / kTileQ - 1;
  if (k_hi < item.k_lo + kTileKv - 1) item.full_last = item.full_first - 1;
  return item;
}

// The steps of a block: its query tiles, head after head.
struct Steps {
  int tile, head;
  __device__ void advance(const BackwardItem& item) {
    if (++tile > item.last) {
      tile = item.first;
      ++head;
    }
  }
};
__device__ inline Steps first_step(const BackwardItem& item) { return {item.first, item.seq.h}; }

// ---- shared memory ----

struct SharedMemory {
  u32 base;

  __device__ u32 k() const { return base; }
  __device__ u32 v() const { return base + kLayout.v_offset; }
  __device__ u32 q(u32 stage) const { return base + kLayout.q_offset + stage * kLayout.q.bytes(); }
  __device__ u32 d_o(u32 stage) const { return base + kLayout.d_o_offset + stage * kLayout.d_o.bytes(); }
  __device__ u32 terms(u32 stage) const { return base + kLayout.terms_offset + stage * row_terms_bytes(config); }
  __device__ u32 exchange(u32 stage) const { return base + kLayout.exchange_offset + stage * kLayout.exchange_bytes; }

  // Barriers: K and V are there; for each stage Q, dO and the row terms are there (full), or their readers are done
  // (empty); each exchange has been written (full), or read (empty).
  __device__ u32 barrier(int index) const { return base + kLayout.barrier_offset + index * 8; }
  __device__ u32 k_full() const { return barrier(0); }
  __device__ u32 v_full() const { return barrier(1); }
  __device__ u32 q_full(u32 stage) const { return barrier(2 + stage); }
  __device__ u32 q_empty(u32 stage) const { return barrier(2 + kStages + stage); }
  __device__ u32 exchange_full(u32 stage) const { return barrier(2 + 2 * kStages + stage); }
  __device__ u32 exchange_empty(u32 stage) const { return barrier(2 + 2 * kStages + kExchanges + stage); }
};

__device__ inline void set_up(const SharedMemory& shared) {
  if (threadIdx.x == 0) {
    init_barrier(shared.k_full(), 1);
    init_barrier(shared.v_full(), 1);
    for (int i = 0; i < kStages; ++i) {
      init_barrier(shared.q_full(i), 1);
      init_barrier(shared.q_empty(i), kConsumerWarps);
    }
    for (int i = 0; i < kExchanges; ++i) {
      init_barrier(shared.exchange_full(i), kExchangingWarps);
      init_barrier(shared.exchange_empty(i), kExchangingWarps);
    }
    publish_barriers();
  }
  __syncthreads();
}

}  // namespace flashjit
