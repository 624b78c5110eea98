// Backward for sm_90a: which keys a block has, which queries it goes over, and the barriers between its warpgroups.
#pragma once

#include "templates/hopper/device.cuh"
#include "templates/hopper/rows.cuh"
#include "templates/hopper_backward/layout.h"
#include "variant.gen.cuh"

namespace flashjit {

constexpr HopperBackwardLayout kLayout = hopper_backward_layout(config);
constexpr int kTileQ = config.tile_q, kTileKv = config.tile_kv;
constexpr int kStages = config.stages, kWarpgroups = config.warpgroups;
constexpr int kConsumerWarps = kWarpgroups * 4;
constexpr bool kHasRoles = has_roles(config);
constexpr int kExchanges = exchanges(config);
constexpr int kExchangingWarps = kHasRoles ? 4 : kConsumerWarps;  // that write one, and that read it
constexpr int kGroup = group_size(config);
constexpr int kTurnBarrier = 1;  // named barriers, one per consumer warpgroup: it is its turn

// The number of a query tile of a head among those of all: where its part of the workspace is.
__device__ inline Int64 workspace_tile(const KernelParams& params, const Sequence& seq, int head, int tile) {
  return (static_cast<Int64>(seq.b) * config.heads_q + head) * params.tiles_q + tile;
}

// A tile of keys, and the query tiles of a head that see any of it: from `first` to `last`. In `full_first`..`full_last` all
// queries see all keys, and no mask code is needed.
struct BackwardItem {
  Sequence seq;
  int k_lo;
  int first, last, full_first, full_last;
};

__device__ inline void find_queries(const KernelParams& params, BackwardItem& item) {
  const int k_hi = min(item.k_lo + kTileKv, item.seq.k_len) - 1;
  const int begin = Variant::q_begin(params, item.seq, item.k_lo, k_hi),
            end = min(Variant::q_end(params, item.seq, item.k_lo, k_hi), item.seq.q_len);
  item.first = begin / kTileQ;
  item.last = begin < end && item.k_lo <= k_hi ? (end - 1) / kTileQ : item.first - 1;
  item.full_first = (Variant::full_q_begin(params, item.seq, item.k_lo, k_hi) + kTileQ - 1) / kTileQ;
  const int full_end = Variant::full_q_end(params, item.seq, item.k_lo, k_hi);
  // Queries behind the last one count for nothing, whatever they see; keys behind the last one would.
  item.full_last = full_end >= item.seq.q_len ? item.last : full_end / kTileQ - 1;
  if (k_hi < item.k_lo + kTileKv - 1) item.full_last = item.full_first - 1;
}

// Tiles of a head follow each other, so that those which run together share Q and dO in L2; with a causal mask the first
// tile has most queries, and what is left for the end is short.
__device__ inline BackwardItem backward_item(const KernelParams& params, int block) {
  const int tiles = (params.k_len + kTileKv - 1) / kTileKv, head = block / tiles;
  BackwardItem item;
  item.seq = sequence_of(params, head / config.heads_kv, head % config.heads_kv * kGroup);
  item.k_lo = block % tiles * kTileKv;
  find_queries(params, item);
  return item;
}

// The steps of a block: the query tiles that it visits, head after head. Those in a hole of the mask are stepped over.
struct Steps {
  int tile, head;

  // False: there are none.
  __device__ bool begin(const KernelParams& params, BackwardItem& item) {
    head = item.seq.h;
    tile = visible(params, item, item.first);
    return tile <= item.last || begin_next_head(params, item);
  }
  // False: this was the last.
  __device__ bool advance(const KernelParams& params, BackwardItem& item) {
    tile = visible(params, item, tile + 1);
    return tile <= item.last || begin_next_head(params, item);
  }

 private:
  __device__ bool begin_next_head(const KernelParams& params, BackwardItem& item) {
    if constexpr (kGroup > 1) {
      const int end = (item.seq.hk + 1) * kGroup;
      while (++head < end) {
        if constexpr (config.ranges_differ || config.mask_has_holes) {
          item.seq.h = head;
          find_queries(params, item);
        }
        tile = visible(params, item, item.first);
        if (tile <= item.last) return true;
        if constexpr (!config.ranges_differ && !config.mask_has_holes) return false;
      }
    }
    return false;
  }
  __device__ static int visible(const KernelParams& params, const BackwardItem& item, int tile) {
    if constexpr (config.mask_has_holes) {
      const int k_hi = min(item.k_lo + kTileKv, item.seq.k_len) - 1;
      while (tile <= item.last && !Variant::may_see(params, item.seq, tile * kTileQ,
                                                    min((tile + 1) * kTileQ, item.seq.q_len) - 1, item.k_lo, k_hi))
        ++tile;
    }
    return tile;
  }
};

// ---- shared memory ----

struct SharedMemory {
  u32 base;

  __device__ u32 k() const { return base; }
  __device__ u32 v() const { return base + kLayout.v_offset; }
  __device__ u32 q(u32 stage) const { return base + kLayout.q_offset + stage * kLayout.q.bytes(); }
  __device__ u32 d_o(u32 stage) const { return base + kLayout.d_o_offset + stage * kLayout.d_o.bytes(); }
  __device__ u32 terms(u32 stage) const { return base + kLayout.terms_offset + stage * row_terms_room(config); }
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
