// The producer's vocabulary: it finds work, and copies Q, K and V with TMA as far ahead as the rings allow.
// loop.gen.cuh determines what it does, and in which order. The producer is one thread. Where keys lie in pages, a warp
// copies, each lane a box, and where a tile takes many boxes, all four warps of the warpgroup do; the first thread does
// everything else.
#pragma once

#include "templates/hopper/work.cuh"
#include "templates/items.cuh"
#include "templates/scales.cuh"

namespace flashjit {

constexpr int kTilesFoundAhead = 4;  // More tiles than two gain nothing.

struct ProducerState {
  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;
  const char* tiles;           // The tiles of V, or of K and V, that a launch before has made.
  Ring<kQStages> q_ring = {};  // The slot of the item that is found or announced next.
  Ring<kStages> ring = {};     // The slot of the next K.
  int waiting_tile = -1;       // The tile of the item announced last whose V is copied next.
  Ring<1> inputs_ring = {};
  int dealt = 0;   // Counts the items that this block was given; -1: no item is left.
  int window = 0;  // Counts the items since failed ones were last repeated.
  Ring<1> clearing = {};
  int again = -1;  // The item of the window to look at next; -1: items are not being repeated.

  // The state that was announced last; before the first item it is the one that set_up() has left.
  __device__ const WorkState& announced() const { return shared.work(q_ring.count - 1); }

  // Returns the number of the tile at this index.
  __device__ int number_of(int index) const { return kListed ? announced().list[index] : index; }

  __device__ bool leads() const { return !kInPages || threadIdx.x == 0; }
  // Makes all threads of the producer see what the first one has done.
  __device__ void join() const {
    if constexpr (kProducers > 32) sync_named(kProducerBarrier, kProducers);
    else if constexpr (kInPages) __syncwarp();
  }

  // Copies a tile of K or V.
  template <class Panels>
  __device__ void copy_rows(u32 to, const Panels& panels, const TensorMap& map, u32 barrier, const WorkState& work,
                            int key) {
#pragma unroll
    for (int panel = 0; panel < panels.panels(); ++panel) {
      const u32 target = to + panel * panels.panel_bytes();
      const int column = panel * panels.panel_columns();
      copy_keys(target, map, barrier, work.seq, column, key);
    }
  }

  // Copies a tile of K or V by maps that end where the sequence does. With pages each thread copies one box.
  template <class Panels>
  __device__ void copy_ending_rows(u32 to, const Panels& panels, const TensorMap& map, const EndSteps& steps,
                                   u32 barrier, const WorkState& work, int key, u32 page) {
    const int first = key + box() * kBoxRows, left = min(work.seq.k_len - first, kBoxRows);
    const int row = kInPages ? first % kPage : first;
#pragma unroll
    for (int i = 0; i < (kInPages ? 1 : panels.panels()); ++i) {
      const int panel = kInPages ? box_number() / kBoxes : i;
      if (panel >= panels.panels()) continue;
      const u32 target = to + panel * panels.panel_bytes() + box() * kBoxRows * kPanelWidth;
      copy_ending_keys(target, map, steps, barrier, work.seq.hk, panel * panels.panel_columns(), page, row, left);
    }
  }

  // Returns the number of this thread's box. Boxes are numbered from panel to panel, and neighbouring boxes belong to
  // different warps, so that all warps are at work.
  __device__ int box_number() const {
    const int thread = recompute(threadIdx.x);
    return thread % 32 * (kProducers / 32) + thread / 32;
  }
  __device__ int box() const { return kInPages ? box_number() % kBoxes : 0; }

  // Returns the page of this thread's box. Behind the length, the table may hold any number, so no page is looked up
  // there: from whichever page the box is taken, it lies behind the end of the sequence. A number outside the pool is
  // replaced by the last page's.
  __device__ u32 look_up_page(const WorkState& work, int key) const {
    const int first = key + box() * kBoxRows;
    if (first >= work.seq.k_len) return 0;
    // Opaque, so that the line of the table is not kept in the few registers of the producer.
    Int64 at = recompute(work.seq.b) * params.table_stride_batch + first / kPage * params.table_stride_page;
    if constexpr (config.head_tables) at += recompute(work.seq.hk) * params.table_stride_head;
    return load_early(params.block_table + at);
  }
  __device__ u32 inside_pool(u32 page) const { return min(page, params.pages - 1u); }

  // `outer` is the batch index, or the page of the tile's first key; the tile ends in the same page.
  __device__ TileScales find_scales(const WorkState& work, int tile, int outer) const {
    const int key = kInPages ? tile * kTileKv % kPage : tile * kTileKv;
    return {scale_of(params.scale_k, params.scale_k_stride, outer, work.seq.hk, key),
            scale_of(params.scale_v, params.scale_v_stride, outer, work.seq.hk, key)};
  }

  // Copies what the score function reads of a tile, for each warpgroup its rows. A warpgroup has one slot, which is
  // free again when the scores of the previous tile have been computed. An earlier prefetch to L2 costs more than it
  // brings [M77].
  __device__ void copy_inputs(const WorkState& work, int tile) {
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      const u32 full = shared.inputs_full(warpgroup);
      wait_barrier(shared.inputs_empty(warpgroup), inputs_ring.parity() ^ 1);
      arrive_expecting(full, copied_input_bytes(config));
      Variant::visit_inputs(params, work.seq, [&](auto input, int x, int y) {
        constexpr int i = decltype(input)::value;
        const TensorMap& map = maps.inputs[input_number(config, i)];
        const int row = config.inputs_q >> i & 1 ? work.q_lo + warpgroup * kRowsPerWarpgroup : 0;
#pragma unroll
        for (int panel = 0; panel < input_panels(config, i); ++panel) {
          const u32 to = shared.inputs(warpgroup, i) + panel * input_panel_bytes(config, i);
          const int key = tile * kTileKv + panel * kPanelWidth / input_bytes_per_key(config, i);
          copy_box(to, map, full, kEvictNormal, key, row, x, y);
        }
      });
    }
    inputs_ring.advance();
  }

  // Copies a tile that a launch before has made, in one piece, as it is to lie in shared memory.
  __device__ void copy_made(u32 to, u32 barrier, const WorkState& work, int tile, int offset, int bytes) const {
    const Int64 number = first_tile_of_keys(params, work.seq) + tile;
    const char* made = tiles + (number * config.heads_kv + work.seq.hk) * made_tile_bytes(config);
    copy_bytes(to, made + offset, bytes, barrier, kEvictLast);
  }

  // Returns whether V of this tile has to be cleared where no query of the item looks: behind a length that the mask
  // reads, or before a window. NaN there would reach rows that do not see its key, as 0 times NaN is NaN. An item with
  // NaN is repeated, and only the repetition clears V. Kernels that repeat no items always clear it.
  __device__ bool clears_values(int key) const {
    const WorkState& work = announced();
    if (!kMainIsCareful && work.kind != Work::careful_item) return false;
    return key < kv_begin(work) || min(key + kTileKv, work.seq.k_len) > kv_end(work);
  }
  __device__ int kv_begin(const WorkState& work) const {
    return Variant::kv_begin(params, work.seq, work.range_lo, work.range_hi);
  }
  __device__ int kv_end(const WorkState& work) const {
    return Variant::kv_end(params, work.seq, work.range_lo, work.range_hi);
  }
  // The keys that queries see in the tile that begins with `key`; await_copied() returns them once the whole tile has
  // been copied.
  struct Seen {
    int begin, end;
  };
  __device__ Seen await_copied(int key) {
    wait_barrier(shared.v_copied(), clearing.parity());
    clearing.advance();
    return {kv_begin(announced()) - key, kv_end(announced()) - key};
  }
  __device__ void clear_rows(u32 values, int key) {
    const Seen seen = await_copied(key);
#pragma unroll 1
    for (int at = kInPages ? recompute(threadIdx.x) * 16 : 0; at < kLayout.copied_v.bytes();
         at += kInPages ? kProducers * 16 : 16) {
      const int row = at / kPanelWidth % kTileKv;
      if (row < seen.begin || row >= seen.end) store_shared(values + at, make_uint4(0, 0, 0, 0));
    }
    fence_async_proxy();
  }
  // Clears V^T like clear_rows. It goes through each column 16 keys at a time, in the order that P has: word i has keys
  // 2 i, 2 i + 1, 2 i + 8 and 2 i + 9.
  __device__ void clear_columns(u32 values, int key) {
    const auto [begin, end] = await_copied(key);
#pragma unroll 1
    for (int chunk = 0; chunk < kTileKv / kChunkBytes; ++chunk) {
      u32 seen[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        seen[i] = 0;
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
          const int of = chunk * kChunkBytes + 2 * i + byte % 2 + byte / 2 * 8;
          if (of >= begin && of < end) seen[i] |= 0xffu << 8 * byte;
        }
      }
      if ((seen[0] & seen[1] & seen[2] & seen[3]) == 0xffffffff) continue;
#pragma unroll 1
      for (int column = 0; column < kLayout.v.rows; ++column) {
        const u32 at = values + chunk / 8 * kLayout.v.panel_bytes() + column * kPanelWidth +
                       (chunk % 8 ^ column % 8) * kChunkBytes;
        const uint4 keys = load_shared(at);
        store_shared(at, make_uint4(keys.x & seen[0], keys.y & seen[1], keys.z & seen[2], keys.w & seen[3]));
      }
    }
    fence_async_proxy();
  }

  __device__ void copy_query_tile(u32 to, u32 barrier, const WorkState& work) {
#pragma unroll
    for (int panel = 0; panel < kLayout.q.panels(); ++panel) {
      const u32 target = to + panel * kLayout.q.panel_bytes();
      const int column = panel * kLayout.q.panel_columns();
      copy_queries(target, maps.q, maps.q_steps, barrier, work.seq, column, work.q_lo);
    }
  }

  // Returns the rank of this block's next item.
  __device__ int next_rank(int items) {
    const int round = dealt++;
    if (!kPersistent) return round == 0 ? blockIdx.x : items;
    return item_of_round(params, round, kInPages ? recompute(gridDim.x) : gridDim.x);
  }

  // Chooses what is to be done next, an item or other work, and the item's rank. Items with failed references are
  // repeated when all of the window are done. Which items these are depends on the inputs alone, not on which block
  // took them.
  __device__ Work choose_next(int& rank) {
    if (again >= 0) {
      while (again < window) {
        int& failed = shared.redo(again++);
        if (failed < 0) continue;
        rank = failed;
        failed = -1;
        return Work::careful_item;
      }
      again = -1;
      window = 0;
    }
    if (dealt >= 0 && (kMainIsCareful || window < kRedoSlots)) {
      const int items = params.tiles_q * kHeads * (kMixesLengths ? 1 : params.batch) * (kKeyParts ? params.parts : 1);
      rank = next_rank(items);
      if (rank < items) return Work::item;
      dealt = -1;
    }
    if (kMainIsCareful || window == 0) return Work::end;
    again = 0;
    return kEndsWithoutNotice && dealt < 0 ? Work::last_flush : Work::flush;
  }

  // Finds the scales of an item whose keys share one scale each. The producer has time to wait for them, and consumers
  // have no registers for it. The state is addressed anew, so that it takes no registers: otherwise d=256 spills.
  __device__ void find_common_scales(WorkState& work) const {
    if (is_item(work.kind))
      work.scales = {kHasUnits ? 1.0f : key_scale(params, work.seq), value_scale(params, work.seq)};
  }

  // Writes the state of what comes next. Where keys lie in pages, numbers that only this function needs lie in shared
  // memory between its calls, because registers are few.
  __device__ void find_next() {
    if constexpr (kInPages) {
      dealt = shared.progress(0), window = shared.progress(1), again = shared.progress(2);
    }
    WorkState& work = shared.work(q_ring.count);
    int rank = 0;
    do {
      work.kind = choose_next(rank);
    } while (is_item(work.kind) && !find_work(work, params, rank));
    if (!is_item(work.kind)) work.set_other(work.kind);
    if (!kMainIsCareful && work.kind == Work::item) work.redo_slot = window++;
    if (remembers_failures(config) && work.kind == Work::careful_item) work.redo_slot = again - 1;
    if constexpr (is_scaled(config)) find_common_scales(shared.work(recompute(q_ring.count)));
    if constexpr (kInPages) {
      shared.progress(0) = dealt, shared.progress(1) = window, shared.progress(2) = again;
    }
  }
};

// Deals out all items of the block. A turn is a tile, or what comes after an item. V follows one tile behind K: it is
// needed when the scores of the next tile are being computed. The next item is found while few tiles of the current
// item are still to be copied. Found earlier, it would be taken at the start of a long item, and blocks with short
// items would be done too soon [M78]. Nor is it found before the current item's first keys are on their way. Each call
// stands here once, because the compiler copies all of them into this loop.
template <class Producer>
__device__ inline void deal_items(Producer& p) {
  u32 flushes = 0;
  bool found = false, copies = false;
  int tile = p.announced().tiles.last;
#pragma unroll 1
  while (true) {
    if (!found && tile < p.announced().tiles.first + (copies ? kTilesFoundAhead : 0)) {
      if (p.leads()) p.find_next();
      p.join();
      found = true;
    }
    copies = tile >= p.announced().tiles.first;
    const int number = copies ? p.number_of(tile) : tile;
    if (copies) p.copy_tile_keys(p.announced(), number);
    // A single slot of Q is free again when the last scores of the previous item have been computed. That item's last V
    // must not wait for it.
    p.copy_waiting_values();
    if (copies) {
      p.end_tile(number);
      tile = visible_tile(p.params, p.announced(), tile - 1);
    } else {
      p.announce(p.shared.work(p.q_ring.count));
      if (p.announced().kind == Work::end) break;
      if (p.announced().kind == Work::flush) wait_barrier(p.shared.flushed(), flushes++ % 2);
      if (kEndsWithoutNotice && p.announced().kind == Work::last_flush) {
        wait_barrier(p.shared.finished(), 0);
        if (!p.shared.some_failed()) break;
      }
      tile = p.announced().tiles.last;
      found = false;
    }
  }
}

}  // namespace flashjit
