// Backward for sm_90a: which keys a block has, which queries it goes over, and the barriers between its warpgroups.
#pragma once

#include "templates/backward/parts.cuh"
#include "templates/dropout.cuh"
#include "templates/hopper/device.cuh"
#include "templates/hopper/rows.cuh"
#include "templates/hopper_backward/tiles.cuh"
#include "templates/tile_lists/axis.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr HopperBackwardLayout kLayout = hopper_backward_layout(config);
constexpr int kTileQ = config.tile_q, kTileKv = config.tile_kv;
constexpr int kStages = config.stages, kWarpgroups = config.hopper_backward.warpgroups;
constexpr bool kInClusters = in_clusters(config), kTakesItems = takes_items(config);
constexpr int kKeySlots = kLayout.k_slots;                         // The number of slots of K.
constexpr int kConsumerWarps = kInClusters ? 8 : kWarpgroups * 4;  // The number of warps that read Q and dO.
constexpr bool kCounts = counts_items(config);
constexpr bool kCutsItems = cuts_items(config);
constexpr bool kOrdered = adds_in_order(config);
constexpr bool kZeroesItems = kTakesItems && kLoopZeroes && config.gradients > 0;
constexpr int kItemReaders =
    // These warps read what is known of an item.
    kConsumerWarps + 1 + kCounts + kZeroesItems + kOrdered;
constexpr int kExchanges = exchanges(config);
constexpr int kTurns = kInClusters ? kDsStages : kExchanges;  // The number of steps in work at a time.
constexpr bool kHasInputs = has_inputs(config);
constexpr int kGroup = group_size(config);
constexpr bool kListed = config.list_heads > 0;  // True if lists say which tiles are visited.
// True if heads have query tiles of their own.
constexpr bool kTilesDiffer = config.ranges_differ || config.mask_has_holes || config.list_heads > 1;
// Each consumer warpgroup waits for its turn at one of these named barriers.
constexpr int kTurnBarrier = 1;
// With roles, these two are the named barriers of the exchange.
constexpr int kWrittenBarrier = kTurnBarrier + 2, kReadBarrier = kWrittenBarrier + 1;
// In clusters, the warps that make dS meet at this one.
constexpr int kDsBarrier = kReadBarrier + 1;

__device__ inline u32 cluster_rank() { return kInClusters ? blockIdx.x % config.hopper_backward.cluster : 0; }
// Returns the first key of this block, counted from the item's first key.
__device__ inline u32 first_key_of_block() { return cluster_rank() * block_keys(config); }

// A tile of keys, and the query tiles of a head that see any of it: from `first` to `last`. In
// `full_first`..`full_last` all queries see all keys, and no mask code is needed. Where there are lists of tiles, these
// numbers are indices into a list.
struct BackwardItem {
  Sequence seq;
  int k_lo;
  int first, last, full_first, full_last;
  int number;       // The number of the tile of keys among all tiles.
  int part_first;   // Where several items share the queries: this item's first query tile.
  const int* list;  // kListed: the list holds the numbers of the item's query tiles.
};

static_assert(sizeof(BackwardItem) <= kItemBytes);

// Leaves one of the parts of a list of tiles that several items share. The part may be empty.
__device__ inline void take_part_of_list(const KernelParams& params, BackwardItem& item) {
  const int count = item.last + 1, part = item.part_first / params.part_tiles;
  item.first = count * part / params.parts;
  item.last = count * (part + 1) / params.parts - 1;
}
__device__ inline void find_listed_queries(const KernelParams& params, BackwardItem& item) {
  const int* list = list_of<Along::queries>(params, item.seq, item.k_lo / kTileKv);
  const bool any = item.k_lo < item.seq.k_len;  // Nobody has written the list of a tile behind the last key.
  item.list = list + kListCounts;
  item.first = item.full_first = 0;
  item.last = any ? list[0] - 1 : -1;
  item.full_last = any ? list[1] - 1 : -1;
  if constexpr (kCutsItems) take_part_of_list(params, item);
}

__device__ inline void find_queries(const KernelParams& params, BackwardItem& item) {
  if constexpr (kListed) {
    find_listed_queries(params, item);
    return;
  }
  const int k_hi = min(item.k_lo + kTileKv, item.seq.k_len) - 1;
  const int begin = Variant::q_begin(params, item.seq, item.k_lo, k_hi),
            end = min(Variant::q_end(params, item.seq, item.k_lo, k_hi), item.seq.q_len);
  item.first = begin / kTileQ;
  item.last = begin < end && item.k_lo <= k_hi ? (end - 1) / kTileQ : item.first - 1;
  item.full_first = (Variant::full_q_begin(params, item.seq, item.k_lo, k_hi) + kTileQ - 1) / kTileQ;
  const int full_end = Variant::full_q_end(params, item.seq, item.k_lo, k_hi);
  // Queries behind the last one count for nothing, whatever they see, but keys behind the last one would count.
  item.full_last = full_end >= item.seq.q_len ? item.last : full_end / kTileQ - 1;
  if (k_hi < item.k_lo + kTileKv - 1) item.full_last = item.full_first - 1;
  if constexpr (kCutsItems) {
    item.first = max(item.first, item.part_first);
    item.last = min(item.last, item.part_first + params.part_tiles - 1);
  }
}

// Returns which tile of which head a block has, in a launch over `heads` heads.
__device__ inline TileOfHead tile_of_block(const KernelParams& params, int block, int blocks, int heads,
                                           int heads_together) {
  const int of_all = kPacked ? heads : heads * params.batch, tiles = blocks / of_all;
  const int group = in_a_group(params, heads_together);
  const int first = block / (group * tiles) * group, at = block - first * tiles, those = min(group, of_all - first);
  return {first + at % those, at / those};
}

// Returns the sequence of a tile of dense sequences, where a batch index has `heads` groups of `group` heads each.
__device__ inline Sequence sequence_of_tile(const KernelParams& params, const TileOfHead& its, int heads, int group) {
  if constexpr (kBatchesTogether) return sequence_of(params, its.head % params.batch, its.head / params.batch * group);
  return sequence_of(params, its.head / heads, its.head % heads * group);
}

// Returns the item that has this number. There are as many numbers as the launch has items, and blocks of a cluster
// share one. Sums in order begin with the last keys: under a causal mask each tile then comes to queries when the tile
// behind it has been there.
__device__ inline BackwardItem backward_item(const KernelParams& params, int number) {
  BackwardItem item;
  item.part_first = kCutsItems ? take_part(params, number) : 0;
  item.number = number;
  const int tiles = kCutsItems ? params.key_items : params.items / config.hopper_backward.cluster;
  const TileOfHead its = tile_of_block(params, number, tiles, config.heads_kv, params.heads_per_group / kGroup);
  if constexpr (kPacked) {
    const NumberedTile numbered = numbered_tile(params.offsets_k, params.batch, kTileKv, its.tile);
    item.seq = sequence_of(params, numbered.b, its.head * kGroup);
    item.k_lo = numbered.tile * kTileKv;
  } else {
    item.seq = sequence_of_tile(params, its, config.heads_kv, kGroup);
    item.k_lo = (kOrdered ? key_tiles(params) - 1 - its.tile : its.tile) * kTileKv;
  }
  find_queries(params, item);
  return item;
}

// Reads the item that the producer has found, and tells ptxas that it is the same for all lanes of a warp. Returns
// false if no item is left.
__device__ inline bool read_item(BackwardItem& item, const KernelParams& params, const BackwardItem& found) {
  item.k_lo = uniform(found.k_lo);
  if (item.k_lo < 0) return false;
  if constexpr (kPacked) item.seq = found.seq;
  else item.seq = sequence_of(params, uniform(found.seq.b), uniform(found.seq.h));
  item.first = uniform(found.first), item.last = uniform(found.last);
  item.full_first = uniform(found.full_first), item.full_last = uniform(found.full_last);
  item.part_first = uniform(found.part_first);
  item.list = kListed ? found.list : nullptr;
  return true;
}

// The steps of a block: the query tiles that it visits, head after head. Tiles in a hole of the mask are stepped over.
struct Steps {
  int tile, head;
  // With lists: the index in the list, and the number of the tile behind that index.
  int list_index = 0, following = 0;

  // Stands in place of a step before the first one.
  __device__ static Steps none() { return {-1, 0}; }
  __device__ bool any() const { return tile >= 0; }
  // Returns the sequence, with the head whose queries the step has.
  __device__ Sequence sequence(const BackwardItem& item) const {
    Sequence seq = item.seq;
    seq.h = head;
    return seq;
  }

  // Returns false if the item has no step.
  __device__ bool begin(const KernelParams& params, BackwardItem& item) {
    head = item.seq.h;
    return begin_head(params, item) || begin_next_head(params, item);
  }
  // Returns whether a tile between the first and the last one lies outside of the mask's holes.
  __device__ static bool sees(const KernelParams& params, const BackwardItem& item, int tile) {
    if constexpr (!config.mask_has_holes) return true;
    const int k_hi = min(item.k_lo + kTileKv, item.seq.k_len) - 1;
    return Variant::may_see(params, item.seq, tile * kTileQ, min((tile + 1) * kTileQ, item.seq.q_len) - 1, item.k_lo,
                            k_hi);
  }
  // Returns false if this was the last step.
  __device__ bool advance(const KernelParams& params, BackwardItem& item) {
    if constexpr (kListed) {
      tile = following;
      if (++list_index > item.last) return begin_next_head(params, item);
      find_following(item);
      return true;
    }
    tile = visible(params, item, tile + 1);
    return tile <= item.last || begin_next_head(params, item);
  }

 private:
  // The number is loaded one step before it is needed.
  __device__ void find_following(const BackwardItem& item) { following = item.list[min(list_index + 1, item.last)]; }
  // Returns false if this head has no step.
  __device__ bool begin_head(const KernelParams& params, const BackwardItem& item) {
    if constexpr (kListed) {
      list_index = item.first;
      if (list_index > item.last) return false;
      tile = item.list[list_index];
      find_following(item);
      return true;
    }
    tile = visible(params, item, item.first);
    return tile <= item.last;
  }
  __device__ bool begin_next_head(const KernelParams& params, BackwardItem& item) {
    if constexpr (kGroup > 1) {
      const int end = (item.seq.hk + 1) * kGroup;
      while (++head < end) {
        if constexpr (kTilesDiffer) {
          item.seq.h = head;
          find_queries(params, item);
        }
        if (begin_head(params, item)) return true;
        if constexpr (!kTilesDiffer) return false;
      }
    }
    return false;
  }
  __device__ static int visible(const KernelParams& params, const BackwardItem& item, int tile) {
    if constexpr (config.mask_has_holes) {
      while (tile <= item.last && !sees(params, item, tile)) ++tile;
    }
    return tile;
  }
};

constexpr u32 kNoTile = 0xffffffff;  // It stands in place of a tile's number when no tile is left.

// In a cluster: the panels of columns of dQ that a block makes at most, and those that exist for this block.
constexpr int kDqPanels = kInClusters ? dq_columns(config) / kLayout.k.panel_columns() : 0;
__device__ inline int dq_panels() {
  return max(0, min(kDqPanels, kLayout.k.panels() - static_cast<int>(cluster_rank()) * kDqPanels));
}

// ---- shared memory ----

__device__ inline u32 lane_id() { return threadIdx.x % 32; }

// Returns where this lane's row of four matrices lies, in a panel with a row for each query. The matrices are those of
// 16 queries and the warp's 16 keys, of 16 bits.
__device__ inline u32 matrices_of_warp(u32 panel) {
  const u32 thread = recompute(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4;
  const u32 row = lane / 16 * 8 + lane % 8, chunk = (warp * 2 + lane / 8 % 2) ^ lane % 8;
  return panel + row * kPanelWidth + chunk * 16;
}

// The warp has finished with what this barrier stands for.
__device__ inline void release(u32 barrier) {
  if (lane_id() == 0) arrive(barrier);
}

struct SharedMemory {
  u32 base;
  char* memory;

  __device__ u32 k(u32 slot = 0) const { return base + kLayout.k_offset + slot * kLayout.k.bytes(); }
  // `slot` is the slot of K of the same item.
  __device__ u32 v(u32 slot = 0) const { return kLayout.swaps ? k(slot ^ 1) : base + kLayout.v_offset; }
  __device__ u32 q(u32 stage) const { return base + kLayout.q_offset + stage * kLayout.q.bytes(); }
  __device__ u32 d_o(u32 step) const {
    return base + kLayout.d_o_offset + step % kLayout.d_o_stages * kLayout.d_o.bytes();
  }
  __device__ u32 terms(u32 stage) const { return base + kLayout.terms_offset + stage * kLayout.terms_step; }
  __device__ u32 exchange(u32 stage) const { return base + kLayout.exchange_offset + stage * kLayout.exchange_bytes; }

  __device__ u32 dropout_key() const { return base + kLayout.dropout_offset; }

  // K and V have barriers that say that they are there. Each stage has one that says that Q, dO and the row terms are
  // there (full), and one that their readers are done (empty). Without roles each exchange has a barrier for written
  // (full) and for read (empty), and the readers of K and of V have one for being done.
  __device__ u32 barrier(int index) const { return base + kLayout.barrier_offset + index * 8; }
  __device__ u32 k_full(u32 slot = 0) const { return barrier(slot); }
  __device__ u32 v_full() const { return barrier(kKeySlots); }
  __device__ u32 q_full(u32 stage) const { return barrier(1 + kKeySlots + stage); }
  __device__ u32 q_empty(u32 stage) const { return barrier(1 + kKeySlots + kStages + stage); }
  __device__ u32 exchange_full(u32 stage) const { return barrier(1 + kKeySlots + 2 * kStages + stage); }
  __device__ u32 exchange_empty(u32 stage) const { return exchange_full(kExchanges + stage); }
  __device__ u32 k_empty(u32 slot) const { return barrier(kLayout.barriers - kKeySlots + slot); }
  __device__ u32 v_empty() const { return barrier(kLayout.barriers - kKeySlots - 1); }
  // Barriers of items say that one has been found, that all warps are done with it, and that the next one is to be
  // found.
  __device__ u32 item_full(u32 slot) const { return barrier(kLayout.barriers - kKeySlots - 2 - slot); }
  __device__ u32 item_empty(u32 slot) const { return item_full(kItemSlots + slot); }
  __device__ u32 item_wanted() const { return item_full(2 * kItemSlots); }

  // Returns an item that the block works on, or will work on.
  __device__ BackwardItem& item(u32 slot) const {
    return *reinterpret_cast<BackwardItem*>(memory + kLayout.items_offset + slot * kItemBytes);
  }

  // Barriers of sums in order say that it is the turn of a step's dQ, and that all of it has been added.
  __device__ u32 turn(u32 i) const { return kInClusters ? ds_barrier(3, i) : exchange_full(2 * kExchanges + i); }
  __device__ u32 added(u32 i) const { return kInClusters ? ds_barrier(4, i) : exchange_empty(i); }

  // Returns the address of elements that the score reads, for each warpgroup. A warpgroup has one slot, which is free
  // again when all elements are in registers.
  template <int i>
  __device__ u32 inputs(u32 warpgroup) const {
    constexpr int kBytes = tile_inputs_bytes(config), kOffset = tile_input_offset(config, i);
    return base + kLayout.inputs_offset + warpgroup * kBytes + kOffset;
  }
  __device__ u32 inputs_full(u32 warpgroup) const { return exchange_full((kOrdered ? 3 : 2) * kExchanges + warpgroup); }
  __device__ u32 inputs_empty(u32 warpgroup) const { return inputs_full(kWarpgroups + warpgroup); }

  // Only clusters have this memory, and full and empty barriers for it: K of the other block; dO by itself; dS of this
  // block, which both blocks read; dS of the other block.
  __device__ u32 other_k() const { return base + kLayout.other_k_offset; }
  __device__ u32 ds(u32 stage) const { return base + kLayout.ds_offset + stage * kLayout.ds.bytes(); }
  __device__ u32 other_ds(u32 stage) const { return base + kLayout.other_ds_offset + stage * kLayout.ds.bytes(); }
  __device__ u32 tile_number(u32 stage) const { return base + kLayout.numbers_offset + stage * 4; }
  __device__ u32 dealt() const { return base + kLayout.dealt_offset; }
  __device__ u32 other_k_full() const { return barrier(2 + 2 * kStages); }
  __device__ u32 d_o_full(u32 step) const { return barrier(3 + 2 * kStages + step % kLayout.d_o_stages); }
  __device__ u32 d_o_empty(u32 step) const {
    return barrier(3 + 2 * kStages + kLayout.d_o_stages + step % kLayout.d_o_stages);
  }
  __device__ u32 ds_barrier(int i, u32 stage) const {
    return barrier(3 + 2 * kStages + 2 * kLayout.d_o_stages + i * kDsStages + stage);
  }
  __device__ u32 ds_full(u32 stage) const { return ds_barrier(0, stage); }
  __device__ u32 ds_empty(u32 stage) const { return ds_barrier(1, stage); }
  __device__ u32 other_ds_full(u32 stage) const { return ds_barrier(2, stage); }
};

// Reads the item of a round, in every warp that needs it. Returns false if no item is left.
__device__ inline bool wait_for_item(BackwardItem& item, const KernelParams& params, const SharedMemory& shared,
                                     int round) {
  wait_barrier(shared.item_full(round % kItemSlots), round / kItemSlots % 2);
  return read_item(item, params, shared.item(round % kItemSlots));
}

// Visits all items of a block for a warp, which releases each one when it is done: visit(item, barrier, parity of that
// barrier then).
template <class Visit>
__device__ inline void each_item(const KernelParams& params, const SharedMemory& shared, const Visit& visit) {
#pragma unroll 1
  for (int round = 0;; ++round) {
    BackwardItem item;
    if (!wait_for_item(item, params, shared, round)) return;
    visit(item, shared.item_empty(round % kItemSlots), round / kItemSlots % 2);
  }
}

// Returns the counter that gives out items, or null. Items with sums in order wait for each other, so all of them come
// from a counter of the call: items of smaller numbers have then begun, whichever blocks run at the same time. (Without
// queries no item waits, and no launch has set the counter to zero.)
__device__ inline int* item_counter(const KernelParams& params, int* dealt) {
  if constexpr (kOrdered) return params.tiles_q > 0 ? dealt : nullptr;
  return params.work_counters;
}

// Blocks of a cluster take the next item together.
__device__ inline void take_item(const SharedMemory& shared, int* counter) {
  const bool leads = threadIdx.x == 0;
  if (leads && cluster_rank() == 0)
    store_shared(shared.dealt(), counter ? atomicAdd(counter, 1) : blockIdx.x / config.hopper_backward.cluster);
  sync_cluster();
  if (leads && cluster_rank() > 0) store_shared(shared.dealt(), load_from(0, shared.dealt()));
  __syncthreads();
}
// Returns the item of a block, or a cluster, that has only one.
__device__ inline BackwardItem item_of_block(const KernelParams& params, const SharedMemory& shared) {
  return backward_item(params, deals_to_clusters(config) ? static_cast<int>(load_shared_word(shared.dealt()))
                                                         : recompute(blockIdx.x) / config.hopper_backward.cluster);
}

}  // namespace flashjit
