// Work of a block: the order of the work items, what the producer tells the consumers about an item, and the barriers
// between producer and consumers.
#pragma once

#include "templates/dropout.cuh"
#include "templates/hopper/device.cuh"
#include "templates/hopper/rows.cuh"
#include "templates/scales.cuh"
#include "templates/tile_lists/axis.cuh"
#include "templates/tile_walk.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr HopperLayout kLayout = hopper_layout(config);
constexpr int kTileQ = config.tile_q, kTileKv = config.tile_kv;
constexpr int kStages = config.stages, kQStages = config.hopper.q_stages;
constexpr bool kTransposesValues = transposes_values(config), kReadsTransposed = reads_transposed(config);
constexpr int kValueStages = value_stages(config);
constexpr int kWarpgroups = config.hopper.warpgroups;
constexpr int kGroup = kGroupedHeads ? group_size(config) : 1;  // The query heads in a tile.
constexpr int kQueries = queries_per_tile(config);              // The queries in a tile.
constexpr int kHeads = config.heads_q / kGroup;
constexpr bool kHasInputs = inputs_bytes(config) > 0;
constexpr bool kOverlaps = config.hopper.overlap == Overlap::qk_pv;
constexpr bool kSumInMatrix = config.hopper.row_sum == RowSum::matrix, kSumsApart = sums_apart(config);
constexpr bool kNarrow = config.element == Element::f8;  // Products have 8 bits.
constexpr bool kHasUnits = has_tile_scales(config);      // True if scales of K and V belong to blocks of keys.
constexpr bool kPersistent = config.hopper.grid == GridKind::persistent;
constexpr bool kKeyParts = config.hopper.keys == Keys::parts;
constexpr bool kMixesLengths = mixes_lengths(config);
__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr bool kListed = config.list_heads > 0;  // True if lists say which tiles are visited.
constexpr bool kInPages = finds_pages(config);
// The producer copies a tile of keys in boxes.
constexpr int kBoxRows = box_rows(config), kBoxes = config.tile_kv / kBoxRows;
constexpr int kProducers = copying_threads(config);
static_assert(!kInPages || boxes_of_tile(config) <= kProducers, "each thread has a box at most");
constexpr int kPage = config.page_size > 0 ? config.page_size : 1;

// Named barriers; 0 is __syncthreads.
constexpr int kTurnBarrier = 1;                           // Each consumer warpgroup waits for its turn at one.
constexpr int kVoteBarrier = kTurnBarrier + kWarpgroups;  // Each consumer warpgroup has one.
constexpr int kProducerBarrier = kVoteBarrier + kWarpgroups;

// The producer ends a window of items with `flush`: it waits until all items are done, and has the failed ones
// repeated. At `last_flush` the consumers look themselves whether an item failed. Mostly none did, and they are done at
// once, which is faster than waiting for the producer's answer [M86].
enum class Work { item, careful_item, flush, last_flush, end };
// True if consumers end without that answer. Products of 8 bits leave no registers for this (d=128: spills 40 bytes).
constexpr bool kEndsWithoutNotice = config.element != Element::f8;

// The KV tiles that some query can see, visited from the last to the first, and among them the full tiles, in which
// every query sees every key and which need no mask code. A range is empty if its last tile is before its first. Where
// there are lists of tiles, the numbers are indices into a list.
struct Tiles {
  int first = 0, last = -1;
  int full_first = 0, full_last = -1;
};

constexpr bool kOwnTiles = has_own_tiles(config, config.hopper.warpgroups);

// Marks say what a warpgroup has to do for an item. They are bits of one register, because registers are scarce. The
// warpgroup may change them.
constexpr u32 kFresh = 1;        // O holds no sums of the item yet.
constexpr u32 kItem = 2;         // The work is an item, whose O has to be written.
constexpr u32 kValues = 4;       // P of the previous tile has still to be multiplied by V.
constexpr u32 kExact = 8;        // Every step takes the standard softmax.
constexpr u32 kIdle = 16;        // The item ends before the rows of this warpgroup begin.
constexpr u32 kPassesLast = 32;  // The block's last tile, which is visited first, is not one of this warpgroup's tiles.
// The block's first tile, which is visited last, is not one of this warpgroup's tiles.
constexpr u32 kPassesFirst = 64;
// Every row sees a key of a mixed tile behind the full ones, so each row has a reference when the main steps begin. The
// producer does not find this out for warpgroups that have tiles of their own, because it has too few registers.
constexpr u32 kAllBegun = 128;

struct alignas(16) Share {
  Tiles tiles;  // The tiles that this warpgroup visits: at least one, if the block has any.
  u32 marks;    // They say what the warpgroup has to do for the item.
};

// One work item is a query tile of a head. The producer writes its state, the consumers read it, and both walk over the
// same KV tiles.
struct alignas(16) WorkState {
  Share shares[kWarpgroups];
  Tiles tiles;
  Sequence seq;
  Work kind;
  int rank;                // The item's place in the order of items.
  int redo_slot;           // The item's slot in the list of items that may have to be repeated.
  int q_lo;                // The block's first query.
  int range_lo, range_hi;  // The tile range is found for these queries.
  const int* list;         // kListed: the list holds the numbers of the item's tiles.
  TileScales scales;       // is_scaled: these scale K and V where all keys share one scale.

  // Turns the state into work that is no item.
  __device__ void set_other(Work other) {
    kind = other;
    tiles = {};
    for (Share& share : shares) share = {tiles, kFresh};
  }
};
static_assert(sizeof(WorkState) <= kWorkStateBytes);

// With grouped heads, neighbouring rows of a tile are the heads of one query.
__device__ inline int query_of_row(const WorkState& work, int row) { return work.q_lo + row / kGroup; }

__device__ inline bool is_item(Work kind) { return kind == Work::item || kind == Work::careful_item; }
__device__ inline bool any_of(const Tiles& tiles) { return tiles.last >= tiles.first; }

// Returns the visible tile at or before `tile`, stepping over tiles in a hole of the mask. A result below the first
// tile means that none is left.
__device__ inline int visible_tile(const KernelParams& params, const WorkState& work, int tile) {
  return skip_holes<Walk::down, kTileKv>(params, work.seq, work.range_lo, work.range_hi, tile, work.tiles.first);
}

// Returns the item of a rank with kMixesLengths. All heads of a tile go together, and tiles are taken by turns from the
// last one down and from the first one up: single tokens, which are bound by reading keys, mostly lie at one end of a
// batch, and prompts at the other. So blocks that read and blocks that multiply run side by side.
__device__ inline WorkItem mixed_item_at(const KernelParams& params, int rank) {
  const int turn = rank / kHeads, tile = turn % 2 == 0 ? params.tiles_q - 1 - turn / 2 : turn / 2;
  const NumberedTile numbered = numbered_tile(params.offsets_q, params.batch, kQueries, tile);
  return {sequence_of(params, numbered.b, rank % kHeads * kGroup), numbered.tile};
}

// Returns the item of a rank. Heads are taken in groups whose K and V stay in L2 together. Within a group the query
// tiles with the most keys come first (with a causal mask the last tiles), or all tiles of a head follow each other.
// All batch indices of a head go together if they share what the score function reads, so that L2 holds it for all of
// them.
__device__ inline WorkItem item_at(const KernelParams& params, int rank) {
  if constexpr (kMixesLengths) return mixed_item_at(params, rank);
  // Opaque, so that the reciprocals of these divisors are not kept in the few registers of the producer.
  const u32 tiles = recompute(params.tiles_q), group = recompute(params.heads_per_group);
  const u32 first_head = rank / (group * tiles) * group, at = rank % (group * tiles);
  const u32 group_heads = min(group, kHeads * params.batch - first_head);
  const int tile = kLongestFirst ? tiles - 1 - at / group_heads : at % tiles;
  const int head = first_head + (kLongestFirst ? at % group_heads : at / tiles);
  const int batch = recompute(params.batch);
  return config.inputs_of_batches ? WorkItem{sequence_of(params, head % batch, head / batch * kGroup), tile}
                                  : WorkItem{sequence_of(params, head / kHeads, head % kHeads * kGroup), tile};
}

// Returns the number of the first tile of keys of a sequence, where a launch before the loop has widened or transposed
// each tile.
__device__ inline int first_tile_of_keys(const KernelParams& params, const Sequence& seq) {
  if constexpr (kKeyRows == Rows::packed) return static_cast<int>(seq.k_token) / kTileKv + seq.b;
  return seq.b * ((params.k_len + kTileKv - 1) / kTileKv);
}

// Returns the tiles that some query of lo..hi sees.
__device__ inline Tiles tiles_of(const KernelParams& params, const WorkState& work, int lo, int hi) {
  const int begin = Variant::kv_begin(params, work.seq, lo, hi), end = Variant::kv_end(params, work.seq, lo, hi);
  Tiles tiles;
  tiles.first = begin / kTileKv;
  tiles.last = begin < end ? (end - 1) / kTileKv : tiles.first - 1;
  tiles.full_first = max((Variant::full_begin(params, work.seq, lo, hi) + kTileKv - 1) / kTileKv, tiles.first);
  tiles.full_last = Variant::full_end(params, work.seq, lo, hi) / kTileKv - 1;
  return tiles;
}

// A warpgroup visits the block's tiles except one that its rows do not see. This is the last tile, as with a causal
// mask, or for the last warpgroup the first tile, as at the front of a window: a warpgroup leaves out at most one tile
// between two items. It keeps at least one tile, because all warpgroups have the same items.
__device__ inline Share share_of(const KernelParams& params, const WorkState& work, int warpgroup) {
  const Tiles& block = work.tiles;
  Share share = {block, kFresh | kItem | (work.kind == Work::careful_item ? kExact : 0)};
  if (!any_of(block)) return share;
  share.marks |= kValues;
  const int first_row = warpgroup * kRowsPerWarpgroup;
  const int lo = query_of_row(work, first_row),
            hi = min(query_of_row(work, first_row + kRowsPerWarpgroup - 1), work.range_hi);
  if (kWarpgroups > 1 && lo > work.range_hi) {
    share.marks |= kIdle;
  } else if constexpr (kOwnTiles) {
    Tiles own = tiles_of(params, work, lo, hi);
    if constexpr (kKeyParts) {
      // The warpgroup sees no tile of this part.
      if (own.last < block.first || own.first > block.last) own.last = own.first - 1;
    }
    const bool sees_first = any_of(own) && own.first <= block.first, sees_last = any_of(own) && own.last >= block.last;
    const bool is_last = warpgroup == kWarpgroups - 1;
    own.first = is_last && !sees_first ? min(block.first + 1, block.last) : block.first;
    own.last = !is_last && !sees_last ? max(block.last - 1, block.first) : block.last;
    if constexpr (kKeyParts) own.full_first = max(own.full_first, own.first);
    share.tiles = own;
    share.marks |= (own.first > block.first ? kPassesFirst : 0) | (own.last < block.last ? kPassesLast : 0);
  } else if (config.mask_is_range && !kListed &&
             Variant::full_end(params, work.seq, work.range_lo, work.range_hi) % kTileKv != 0) {
    share.marks |= kAllBegun;
  }
  return share;
}

// Leaves only one of the `parts` shares of an item's tiles. The share may be empty.
__device__ inline void take_part(Tiles& tiles, int part, int parts) {
  const int first = tiles.first, count = max(tiles.last - first + 1, 0);
  tiles.first = first + count * part / parts;
  tiles.last = first + count * (part + 1) / parts - 1;
  tiles.full_first = max(tiles.full_first, tiles.first);
}

// Finds the tiles that the block's queries see.
__device__ inline void find_tiles(WorkState& work, const KernelParams& params, int tile) {
  if constexpr (kListed) {
    const int* list = list_of<Along::keys>(params, work.seq, tile);
    work.tiles = {0, list[0] - 1, 0, list[1] - 1};
    work.list = list + kListCounts;
  } else {
    work.tiles = tiles_of(params, work, work.range_lo, work.range_hi);
  }
}

// Returns false if the tile lies behind the end of its sequence. The parts of an item have ranks that follow each
// other.
__device__ inline bool find_work(WorkState& work, const KernelParams& params, int rank) {
  const int parts = kKeyParts ? static_cast<int>(recompute(params.parts)) : 1;
  const WorkItem item = item_at(params, rank / parts);
  work.seq = item.seq;
  work.rank = rank;
  work.range_lo = item.tile * kQueries;
  if (work.range_lo >= item.seq.q_len) return false;
  work.range_hi = min(work.range_lo + kQueries, item.seq.q_len) - 1;
  work.q_lo = work.range_lo;
  find_tiles(work, params, item.tile);
  if constexpr (kKeyParts) take_part(work.tiles, rank % parts, parts);
  work.tiles.last = visible_tile(params, work, work.tiles.last);
#pragma unroll 1
  for (int i = 0; i < kWarpgroups; ++i) work.shares[i] = share_of(params, work, i);
  return true;
}

// ---- shared memory ----

// A position in a ring of `stages` slots: the slot, and the parity of its barriers.
template <int stages>
struct Ring {
  u32 count = 0;
  __device__ u32 stage() const { return count % stages; }
  __device__ u32 parity() const { return count / stages % 2; }
  __device__ void advance() { ++count; }
  __device__ Ring previous() const { return {count - 1}; }
};

struct SharedMemory {
  u32 base;  // The address of the block's shared memory.
  char* memory;

  __device__ u32 q(u32 slot) const { return base + slot * round_up(kLayout.q.bytes(), 1024); }
  __device__ u32 ones() const { return base + kLayout.ones_offset; }
  __device__ u32 output() const { return base + kLayout.output_offset; }
  __device__ u32 k(u32 stage) const { return base + kLayout.k_offset + stage * round_up(kLayout.k.bytes(), 1024); }
  __device__ u32 v(u32 stage) const {
    return base + kLayout.v_offset + stage * (values_side_by_side(config) ? kPanelWidth / 2 : kLayout.v_stage_bytes);
  }
  // Returns the address of V as TMA brings it.
  __device__ u32 copied_v(u32 stage) const {
    return base + kLayout.copied_v_offset + stage * kLayout.copied_v_stage_bytes;
  }
  // Returns the address of a warpgroup's tile of parameter i, which the score function reads.
  __device__ u32 inputs(u32 warpgroup, int i) const {
    return base + kLayout.inputs_offset + warpgroup * inputs_bytes(config) + input_offset(config, i);
  }
  // Returns the state of a block's item; items are counted from 0.
  __device__ WorkState& work(u32 item) const {
    return *reinterpret_cast<WorkState*>(memory + kLayout.state_offset + item % kWorkSlots * kWorkStateBytes);
  }
  // The rank of the item that must be repeated, by its slot, or -1.
  __device__ int& redo(int i) const { return *reinterpret_cast<int*>(memory + kLayout.redo_offset + i * 4); }
  // remembers_failures(): one bit for each of a warp's items, by slot, set if the item must be repeated.
  __device__ u32& failed_items(u32 warp, int slot) const {
    return *reinterpret_cast<u32*>(memory + kLayout.failed_offset + (warp * (kRedoSlots / 32) + slot / 32) * 4);
  }
  __device__ bool some_failed() const {
    u32 all = ~0u;
#pragma unroll(is_scaled(config) ? 4 : kRedoSlots / 4)  // Beside scales the producer has few registers.
    for (int i = 0; i < kRedoSlots; i += 4) {
      const uint4 ranks = load_shared(base + kLayout.redo_offset + i * 4);
      all &= ranks.x & ranks.y & ranks.z & ranks.w;
    }
    return all != ~0u;
  }

  // Returns the scales of the tile of keys that has this number in the block.
  __device__ TileScales& scales(u32 count) const {
    return reinterpret_cast<TileScales*>(memory + kLayout.scales_offset)[count % larger(scale_slots(config), 1)];
  }

  __device__ u32 dropout_key() const { return base + kLayout.dropout_offset; }

  // Where keys lie in pages, the producer keeps its knowledge of items here from one item to the next.
  __device__ int& progress(int i) const { return number(i); }
  // A value other than 0 tells the warps that transpose V that no more V comes, and that this slot holds none.
  __device__ int& values_ended(u32 stage) const { return number((kInPages ? kProgressNumbers : 0) + stage); }
  // Returns the number of the tile of K in this stage.
  __device__ int& listed_tile(u32 stage) const {
    return number((kInPages ? kProgressNumbers : 0) + (kTransposesValues ? kStages : 0) + stage);
  }
  __device__ int& number(int i) const { return *reinterpret_cast<int*>(memory + kLayout.numbers_offset + i * 4); }

  // Each stage of Q, K and V has a barrier `full` (data is there) and one `empty` (its readers are done). Two more
  // stand for the end of a window and of the last window, and one for V that the producer waits for itself. V that is
  // to be transposed, and the inputs of each warpgroup, have full and empty barriers, too.
  __device__ u32 barrier(int index) const { return base + kLayout.barrier_offset + index * 8; }
  __device__ u32 q_full(u32 slot) const { return barrier(slot); }
  __device__ u32 q_empty(u32 slot) const { return barrier(kQStages + slot); }
  __device__ u32 k_full(u32 stage) const { return barrier(2 * kQStages + stage); }
  __device__ u32 k_empty(u32 stage) const { return barrier(2 * kQStages + kStages + stage); }
  __device__ u32 v_full(u32 stage) const { return barrier(2 * kQStages + 2 * kStages + stage); }
  __device__ u32 v_empty(u32 stage) const { return barrier(2 * kQStages + 3 * kStages + stage); }
  __device__ u32 flushed() const { return barrier(2 * kQStages + 4 * kStages); }
  __device__ u32 finished() const { return barrier(2 * kQStages + 4 * kStages + 1); }
  __device__ u32 v_copied() const { return barrier(2 * kQStages + 4 * kStages + 2); }
  static constexpr int kCopiedBarriers = 2 * kQStages + 4 * kStages + 3,
                       kInputBarriers = kCopiedBarriers + (kTransposesValues ? 2 * kStages : 0);
  __device__ u32 copied_v_full(u32 stage) const {
    return kTransposesValues ? barrier(kCopiedBarriers + stage) : v_full(stage);
  }
  __device__ u32 copied_v_empty(u32 stage) const {
    return kTransposesValues ? barrier(kCopiedBarriers + kStages + stage) : v_empty(stage);
  }
  __device__ u32 inputs_full(u32 warpgroup) const { return barrier(kInputBarriers + warpgroup); }
  __device__ u32 inputs_empty(u32 warpgroup) const { return barrier(kInputBarriers + kWarpgroups + warpgroup); }
};

// True if references are the maxima of each tile: such tiles cannot fail.
constexpr bool kMainIsCareful = config.reference == Reference::tile;

// Fills the ones by which products sum up rows.
__device__ inline void fill_ones(const SharedMemory& shared) {
  // All columns of the panel behind V are ones, so its swizzle does not matter and every lane of a quad gets the row
  // sum. Transposed V has rows of ones in each of its panels.
  if constexpr (kSumsApart) {
    const u32 one = pack_e4m3(1.0f, 1.0f, 1.0f, 1.0f);
    for (int at = threadIdx.x * 16; at < kSumColumns * kPanelWidth; at += hopper_threads(config) * 16)
      store_shared(shared.ones() + at, make_uint4(one, one, one, one));
  } else if constexpr (kNarrow) {
    constexpr int kPanels = kLayout.v.panels(), kOnes = kSumColumns * kPanelWidth;
    const u32 one = config.cache == Narrow::e5m2 ? 0x3c3c3c3c : pack_e4m3(1.0f, 1.0f, 1.0f, 1.0f);
#pragma unroll 1
    for (int i = 0; i < kValueStages * kPanels; ++i) {
      const u32 address = shared.v(i / kPanels) + (i % kPanels + 1) * kLayout.v.panel_bytes() - kOnes;
#pragma unroll 1
      for (int at = threadIdx.x * 16; at < kOnes; at += hopper_threads(config) * 16)
        store_shared(address + at, make_uint4(one, one, one, one));
    }
  } else {
    const u32 one = pack<config.element>(1.0f, 1.0f);
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll 1
      for (int i = threadIdx.x; i < kLayout.v.panel_bytes() / 16; i += hopper_threads(config)) {
        store_shared(shared.v(stage) + kLayout.v.bytes() + i * 16, make_uint4(one, one, one, one));
      }
    }
  }
  fence_async_proxy();
}

// These functions set the state, beside barriers, with which a block begins.
__device__ inline void clear_redo(const SharedMemory& shared) {
  if (threadIdx.x < kRedoSlots) shared.redo(threadIdx.x) = -1;
  if constexpr (remembers_failures(config)) {
    constexpr u32 kWords = kRedoSlots / 32;
    const u32 warp = threadIdx.x / kWords, slot = threadIdx.x % kWords * 32;
    if (warp < static_cast<u32>(kWarpgroups) * 4) shared.failed_items(warp, static_cast<int>(slot)) = 0;
  }
}
__device__ inline void begin_progress(const SharedMemory& shared) {
  shared.progress(0) = shared.progress(1) = 0, shared.progress(2) = -1;
}
// Before the first item there is nothing to write.
__device__ inline void begin_work(const SharedMemory& shared) { shared.work(kWorkSlots - 1).set_other(Work::flush); }

}  // namespace flashjit
