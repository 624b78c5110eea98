// The consumer's vocabulary: the registers of a thread that computes, and the functions that lines of loop.gen.cuh
// call. loop.gen.cuh determines what the consumer does, and in which order.
#pragma once

#include "matrix.gen.cuh"
#include "templates/hopper/output.cuh"
#include "templates/hopper/own_sums.cuh"
#include "templates/hopper/queries.cuh"

namespace flashjit {

constexpr bool kReplacesQueries = output_replaces_queries(config);

using OutputPiece = float[kProductColumns / 2];

// Returns whether, in the step of this tile, P V of the previous tile joins the sum that O has not taken in yet. O
// takes in the sum of kTiles tiles at a time. The tile's number decides, and not the position of the ring, which
// depends on the block's earlier items: results must not depend on these.
__device__ inline bool joins_sum(int tile) {
  constexpr int kTiles = tiles_of_sum(config);
  return static_cast<u32>(tile) % kTiles != kTiles - 1;
}

// O takes in a piece of its columns: the products of these columns, times the scale of V where tiles have scales.
template <int piece>
__device__ inline void add_product(Output& o, const OutputPiece& t) {
#pragma unroll
  for (int i = 0, at = piece * kProductColumns / 2; i < kProductColumns / 2 && at < kOutputs; ++i, ++at)
    o[at] = o[at] + t[i];
}
template <int piece>
__device__ inline void add_product(Output& o, const OutputPiece& t, float unit) {
#pragma unroll
  for (int i = 0, at = piece * kProductColumns / 2; i < kProductColumns / 2 && at < kOutputs; ++i, ++at)
    o[at] = fmaf(unit, t[i], o[at]);
}

__device__ inline bool is_negative(float sum) { return uniform(__float_as_uint(sum) >> 31 != 0); }

// ---- the sums of rows when an item is complete ----

__device__ inline void keep_sums(RowStates& rows, bool saw_keys) {
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.sum[h] = saw_keys ? rows.sum[h] : 0.0f;
}
__device__ inline void take_sums(RowStates& rows, const Output& o, bool saw_keys) {
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.sum[h] = saw_keys ? o[config.head_dim_v / 2 + 2 * h] : 0.0f;
}
__device__ inline void add_up_quads(RowStates& rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.sum[h] = quad_sum(rows.sum[h]);
}

struct ConsumerState : KeyParts<kKeyParts>, OwnSums<kSumsApart>, QueryOperand<queries_in_registers(config)> {
  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;
  Inputs inputs = {shared, maps.has_inputs != 0};
  Ring<kQStages> q_ring = {};  // The slot of this item's Q.
  Ring<kStages> ring = {};     // The slot of the next K. V is one tile behind.
  Tiles tiles;                 // The tiles of this item that this warpgroup visits.
  // Bits that say what this warpgroup has to do for the item. One register holds all marks, because registers are scarce.
  u32 marks = 0;
  Queries queries;    // The queries of this item's main steps.
  RowScales scales;   // The scales of this item's rows.
  float unit = 1.0f;  // kHasUnits: the scale of V in the product that O takes in next.

  Output o;
  Scores s;
  Probabilities p;
  OutputPiece t;  // kAddsTiles: it holds P V of a tile until O takes it in.
  RowStates rows;

  // V is one tile behind K.
  __device__ Ring<kValueStages> values() const { return {ring.count - 1}; }
  // Returns the address where the columns of a piece of V begin.
  __device__ u32 values_at(int piece = 0) const {
    return recompute(shared.v(values().stage())) + piece * kProductColumns * kPanelWidth;
  }
  // Returns the scale of V in this slot, by which its product is multiplied.
  __device__ float unit_of(Ring<kValueStages> v) const { return kHasUnits ? shared.scales(v.count).v : 1.0f; }
  // A product takes the registers of the scores while no scores are being computed.
  __device__ OutputPiece& piece() { return reinterpret_cast<OutputPiece&>(s); }

  __device__ bool is_marked(u32 mark) const { return uniform((marks & mark) != 0); }
  __device__ int next_tile(const WorkState& work, int tile) const {
    return config.mask_has_holes ? uniform(visible_tile(params, work, tile - 1)) : tile - 1;
  }
  // P V with registers of its own leaves no register for the number of the last full tile, so each use reads it again.
  __device__ int last_full(const WorkState& work) const {
    return kAddsTiles ? uniform(work.shares[warpgroup_id()].tiles.full_last) : tiles.full_last;
  }
  __device__ bool is_mixed(const WorkState& work, int tile) const {
    const int full_last = last_full(work);
    return tile < tiles.full_first || tile > full_last;
  }
  __device__ bool all_have_references() const {
    return !any_of_warpgroup(rows.reference[0] == -kInfinity || rows.reference[1] == -kInfinity);
  }

  // Warpgroups issue products by turns.
  __device__ void begin_turn() { sync_named(kTurnBarrier + warpgroup_id(), 2 * kThreadsPerWarpgroup); }
  __device__ void end_turn() {
    arrive_named(kTurnBarrier + (warpgroup_id() + 1) % kWarpgroups, 2 * kThreadsPerWarpgroup);
  }
  // The warp has finished reading a stage, and gives it back.
  __device__ void release(u32 barrier) {
    if (lane_id() == 0) arrive(barrier);
  }

  // Looks up the item that comes next. Its marks stand in bits above the marks of the item whose O is still to be
  // written, because registers are scarce. With turns this wait cannot deadlock: when a warpgroup has its turn here,
  // the others have issued their last read of the only Q.
  static constexpr int kNext = 16;
  __device__ void look_up(int& tile) {
    wait_barrier(shared.q_full(q_ring.stage()), q_ring.parity());
    load_queries(shared.q(q_ring.stage()));
    const Share& share = shared.work(q_ring.count).shares[warpgroup_id()];
    tiles = {uniform(share.tiles.first), uniform(share.tiles.last), uniform(share.tiles.full_first),
             uniform(share.tiles.full_last)};
    tile = tiles.last;
    marks |= uniform(share.marks) << kNext;
  }

  // The item will be repeated, and its results will be overwritten. Several threads may note this, with the same
  // number.
  __device__ void note_failure(const WorkState& work) { atomicMax(&shared.redo(work.redo_slot), work.rank); }

  // With accumulate, a warp with a failed row stores nothing of the item, and remembers this. The other warps have
  // added to O and LSE already, and must not do so again when the item is repeated.
  __device__ u32& failed_items(const WorkState& work) const {
    return shared.failed_items(threadIdx.x / 32 - kThreadsPerWarpgroup / 32, work.redo_slot);
  }
  __device__ void remember_failure(const WorkState& work) {
    if (lane_id() == 0) failed_items(work) |= 1u << work.redo_slot % 32;
    __syncwarp();
  }
  __device__ bool has_stored(const WorkState& work) {
    const u32 bit = 1u << work.redo_slot % 32, failed = failed_items(work) & bit;
    __syncwarp();
    if (lane_id() == 0) failed_items(work) &= ~bit;
    __syncwarp();
    return uniform(failed == 0);
  }

  // Q has been read for the last time, and its slot may be filled again. The work state is still read: there are more
  // states than slots of Q.
  __device__ void release_queries() {
    if constexpr (!kReplacesQueries) arrive(shared.q_empty(q_ring.stage()));
  }
  // Where O takes the slot of Q, the slot is free when O of the previous item has left it.
  __device__ void release_output() {
    if constexpr (kReplacesQueries) {
      if (q_ring.count == 0) return;
      wait_stores_read();
      arrive(shared.q_empty(q_ring.previous().stage()));
    }
  }
};

// Visits all items of a block. The careful step leads from one item to the next, main and careful steps follow, and
// where no item is left, the consumer does what the producer's state asks for.
template <class Consumer>
__device__ inline void take_items(Consumer& c) {
  bool changes = true;
  int tile = 0;
  while (true) {
    const WorkState& work = c.shared.work(c.q_ring.count);
    c.careful_step(tile, changes);
    if (changes) c.release_output();
    if (c.is_marked(kValues)) {
      const int previous = tile;
      tile = c.next_tile(work, tile);
      if (changes && c.is_marked(kIdle)) {
        c.marks &= ~kValues;
        c.pass_item(work, tile);
        tile = c.tiles.first - 1;
      } else if (c.takes_main_step(work, tile, previous)) {
        if constexpr (kKeepsQueries) c.queries.find(work, recompute(threadIdx.x));
        if constexpr (kCapped)
          c.rows.polynomial = c.rows.polynomial || suggests_small_arguments(c.rows, work.seq.k_len);
        c.main_steps(work, tile);
        tile = c.next_tile(work, tile + 1);
      }
      changes = tile < c.tiles.first;
    } else {
      const Work kind = static_cast<Work>(uniform(static_cast<int>(work.kind)));
      if (kind == Work::end) break;
      __syncwarp();
      if (kEndsWithoutNotice && kind == Work::last_flush) {
        c.release(c.shared.finished());
        wait_barrier(c.shared.finished(), 0);
        if (!uniform(c.shared.some_failed())) break;
      } else if (kind == Work::flush) {
        c.release(c.shared.flushed());
      }
      c.release_queries();
      changes = true;
    }
    if (changes) c.q_ring.advance();
  }
}

}  // namespace flashjit
