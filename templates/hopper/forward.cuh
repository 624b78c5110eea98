// Forward attention for sm_90a: TMA copies by a producer, warpgroup matrix products, online softmax.
//
// A block is one producer warpgroup, of which one thread works (and three warps where they transpose V), and up to three
// consumer warpgroups of 64 query rows each. KV tiles are visited from the last to the first: with a causal mask the
// tiles that need mask code come first, and the rest of the loop is free of it.
#pragma once

#include "matrix.gen.cuh"
#include "templates/hopper/output.cuh"
#include "templates/hopper/own_sums.cuh"
#include "templates/hopper/producer.cuh"
#include "templates/hopper/queries.cuh"
#include "templates/hopper/transpose.cuh"

namespace flashjit {

struct Consumer : KeyParts<kKeyParts>, OwnSums<kSumsApart>, QueryOperand<queries_in_registers(config)> {
  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;
  Inputs inputs = {shared, maps.has_inputs != 0};
  Ring<kQStages> q_ring = {};  // of this item
  Ring<kStages> ring = {};     // of the next K; V is one tile behind
  Tiles tiles;                 // of this item, that this warpgroup visits
  u32 marks = 0;               // what it is to this warpgroup: in one register, there are few
  Queries queries;             // of this item's main steps
  RowScales scales;            // of this item
  float unit = 1.0f;           // kHasUnits: of V in the product that O takes in later

  Output o;
  Scores s;
  Probabilities p;
  OutputPiece t;  // kAddsTiles: P V of a tile, which O then takes in
  RowStates rows;

  // V is one tile behind K.
  __device__ Ring<kValueStages> values() const { return {ring.count - 1}; }

  __device__ bool is_marked(u32 mark) const { return uniform((marks & mark) != 0); }
  __device__ int next_tile(const WorkState& work, int tile) const {
    return config.mask_has_holes ? uniform(visible_tile(params, work, tile - 1)) : tile - 1;
  }

  // Beside a product of its own there is no register for the last full tile: it is read where it is asked for.
  __device__ int last_full(const WorkState& work) const {
    return kAddsTiles ? uniform(work.shares[warpgroup_id()].tiles.full_last) : tiles.full_last;
  }
  __device__ bool is_mixed(const WorkState& work, int tile) const {
    const int full_last = last_full(work);
    return tile < tiles.full_first || tile > full_last;
  }
  __device__ int first_of_steps() const { return kMasksInStep ? tiles.first : tiles.full_first; }

  // ---- turns: the warpgroups issue their products one after the other, so that one computes softmax under the others'
  // products

  __device__ void begin_turn() { sync_named(kTurnBarrier + warpgroup_id(), 2 * kThreadsPerWarpgroup); }
  __device__ void end_turn() {
    arrive_named(kTurnBarrier + (warpgroup_id() + 1) % kWarpgroups, 2 * kThreadsPerWarpgroup);
  }

  // The warp is done with a stage.
  __device__ void release(u32 barrier) {
    if (lane_id() == 0) arrive(barrier);
  }

  // S = Q K^T, issued.
  __device__ void issue_scores() { multiply_queries(s, shared.q(q_ring.stage()), shared.k(ring.stage())); }

  // What a product of P and V writes: O, or what O takes in when it is done.
  __device__ auto& products() {
    if constexpr (kAddsFirst) return reinterpret_cast<OutputPiece&>(s);
    else if constexpr (kAddsTiles) return t;
    else return o;
  }
  __device__ void clear_product() {
    clear(t);
    clear_sums();
    unit = 1.0f;
  }
  template <class Products>
  __device__ void issue_product(Products& sums, int piece, bool on_top) {
    pin_registers(sums);
    begin_products();
    const u32 v = recompute(shared.v(values().stage())) + piece * kProductColumns * kPanelWidth;
    if constexpr (kAddsTiles) {
      if constexpr (kOverlaps) multiply_output(sums, p, descriptor(v), on_top);
      else multiply_output(sums, p, descriptor(v));
    } else {
      multiply_output(sums, p, descriptor(v, kLayout.v.panel_bytes()), !(marks & kFresh));
      marks &= ~kFresh;
    }
    commit_products();
  }

  // Of V in this place, for its product.
  __device__ float unit_of(Ring<kValueStages> v) const { return kHasUnits ? shared.scales(v.count).v : 1.0f; }

  // O += P V, issued. In pieces it is done but for the last; `adds`: O is to take in what has been multiplied; `on_top`: the
  // product is added to what O has not taken in yet.
  __device__ void issue_output(bool adds = true, bool on_top = false) {
#pragma unroll
    for (int piece = 0; piece < kProductPieces; ++piece) {
      if (piece > 0) {
        wait_products<0>();
        take_in(unit_of(values()), piece - 1, adds);
      }
      if (piece == kProductPieces - 1) issue_sums(p, shared.ones(), on_top);
      issue_product(products(), piece, on_top);
    }
  }

  // The product is done: O has taken it in or, if it is of these columns, does now.
  __device__ void take_in(float unit, int piece = kProductPieces - 1, bool adds = true) {
    pin_registers(products());
    if constexpr (kAddsTiles) {
      if (!adds) return;
      if (piece == kProductPieces - 1) take_in_sums(rows);
#pragma unroll
      for (int i = 0, at = piece * kProductColumns / 2; i < kProductColumns / 2 && at < kOutputs; ++i, ++at)
        o[at] = kHasUnits ? fmaf(unit, products()[i], o[at]) : o[at] + products()[i];
    }
  }

  __device__ void release_keys() { release(shared.k_empty(ring.stage())); }
  __device__ void release_values() { release(shared.v_empty(values().stage())); }

  // Q has been read for the last time, and its place may be filled again. The work state lives on: there are more of
  // these.
  __device__ void release_queries() {
    if constexpr (!kReplacesQueries) arrive(shared.q_empty(q_ring.stage()));
  }
  // Or O of the item before has left the place of its Q.
  __device__ void release_output() {
    if constexpr (kReplacesQueries) {
      if (q_ring.count == 0) return;
      wait_stores_read();
      arrive(shared.q_empty(q_ring.previous().stage()));
    }
  }

  // The main step: the scores of `tile`, then O takes in the tile before it while this one is exponentiated.
  __device__ void step(const WorkState& work, int tile, bool last) {
    wait_barrier(shared.k_full(ring.stage()), ring.parity());
    if constexpr (!kOverlaps) wait_barrier(shared.v_full(values().stage()), values().parity());
    if constexpr (kTakesTurns) begin_turn();
    if constexpr (!kOverlaps) finish_output();
    begin_products();
    issue_scores();
    commit_products();
    const bool on_top = joins_sum(tile);
    if (kTakesInLater && !on_top) take_in(unit);
    if constexpr (kOverlaps) wait_barrier(shared.v_full(values().stage()), values().parity());
    Kept kept;
    if constexpr (kDrops) draw(kept, shared, work, tile);
    if constexpr (kOverlaps) issue_output(true, on_top);
    if constexpr (kTakesInLater) unit = unit_of(values());
    if constexpr (kTakesTurns) end_turn();
    Tile main = {params, work, tile, inputs, scales};
    if constexpr (kHasUnits) main.keys_scale = shared.scales(ring.count).k;
    const auto begin = [&] {
      if constexpr (!kMainIsCareful && !kScaleFolded) main.begin(kKeepsQueries ? &queries : nullptr);
    };
    if constexpr (!kInputsAfter) begin();
    float factor[2];
    wait_products<kOverlaps ? 1 : 0>();
    pin_registers(s);
    release_keys();
    if (last) release_queries();
    if constexpr (kMainIsCareful) apply_score_and_mask(s, main, false, all_columns());
    if constexpr (kCompletesFirst) complete_output();
    if constexpr (kInputsAfter) begin();
    const auto halfway = [&](float sum) {
      if constexpr (kCompletesHalfway) {
        // Of a barrier that has been waited for: for nothing, but behind what depends on the sum, which is not below 0.
        // What is to be done before a wait for products ptxas would do behind it, but not what a branch needs.
        wait_barrier(shared.v_full(values().stage()), values().parity() ^ uniform(__float_as_uint(sum) >> 31 != 0));
        complete_output();
      }
    };
    if constexpr (kMainIsCareful) {
      careful_softmax(s, rows, all_columns(), false, factor, halfway);
    } else {
      if (kMasksInStep && uniform(tile < tiles.full_first)) {
        quick_softmax(s, rows, main, visible_columns(params, work, tile), [](float) {});
        pin_registers(s);
        if constexpr (kCompletesHalfway) complete_output();
      } else {
        quick_softmax(s, rows, main, [](int, float x) { return x; }, halfway);
      }
    }
    if constexpr (kOverlaps && !kCompletesFirst && !kCompletesHalfway) {
      pin_registers(s);
      complete_output();
    }
    ring.advance();
    if (config.reference != Reference::first && rose(factor)) rescale_all(factor);
    if constexpr (kLinear) rows.large = convert_linear(p, s);
    else convert(p, s);
    if constexpr (kDrops) drop<WeightRows::queries>(p, kept);
    if constexpr (kLooksAtTile && kSumInMatrix && !kLinear) rows.large = has_large(p);
  }

  // References rise so far that what was large becomes 1. O has taken in all tiles before the one in P.
  __device__ void lower() {
    float factor[2];
    if constexpr (kNarrow && !kLinear) {
      if (!uniform(has_large(p))) return;
    }
    if constexpr (kLinear) lower_exponents(p, s, rows, factor);
    else if constexpr (kLooksBack) lower_sums(p, rows, o, factor);
    else lower_probabilities(p, s, rows, factor);
    rescale_all(factor);
  }
  // What has been summed up: by O, ...
  __device__ void rescale_output(const float (&factor)[2]) {
    rescale(o, factor);
    rescale_taken(rows, factor);
  }
  // ... and what it has not taken in.
  __device__ void rescale_all(const float (&factor)[2]) {
    rescale_output(factor);
    if constexpr (kTakesInLater) {
      rescale(t, factor);
      rescale_sums(factor);
    }
  }

  // O has taken in the tile before.
  __device__ void complete_output() {
    wait_products<0>();
    pin_registers(products());
    release_values();
    if constexpr (kAddsTiles && !kTakesInLater) take_in(unit_of(values()));
  }

  // O += P V, done at once: where registers do not suffice for S beside P.
  __device__ void finish_output() {
    issue_output();
    complete_output();
  }

  // ---- tiles that a warpgroup does not visit: it gives their places back unread, in step with the others ----

  // K, V and the inputs of the next tile. Those of V are still to be released. The fence is for ptxas, which learns
  // from it that all lanes are here: else it would take a loop around this for one that lanes may leave at different
  // times, and no longer keep the stage of the ring in uniform registers, in the main step as well (d=128 1.02,
  // d=256 1.04 of the time; H200, 2026-11-22).
  __device__ void pass_copies() {
    begin_products();
    wait_barrier(shared.k_full(ring.stage()), ring.parity());
    release_keys();
    if constexpr (kHasInputs) {
      if (inputs.given) {
        wait_barrier(inputs.full(), inputs.ring.parity());
        inputs.release();
      }
    }
    ring.advance();
    wait_barrier(shared.v_full(values().stage()), values().parity());
  }

  // In the middle of the step between the two items. The values of the item before, if there are any, go back first:
  // the copies of this tile may need their place. Those of this tile are then what the step releases.
  __device__ void pass_tile(bool holds_values) {
    wait_products<0>();
    if (holds_values) release_values();
    if constexpr (kTakesTurns) end_turn();
    pass_copies();
    if (!holds_values) release_values();
    if constexpr (kTakesTurns) begin_turn();
  }

  // Of an item that ends before this warpgroup's rows begin all but the first step is left out, whose result nobody
  // looks at: the values as well, and the tiles from `tile` on.
  __device__ void pass_item(const WorkState& work, int tile) {
    wait_barrier(shared.v_full(values().stage()), values().parity());
    release_values();
    if (tile >= tiles.first) release_queries();
#pragma unroll 1
    for (; tile >= tiles.first; tile = next_tile(work, tile)) {
      if constexpr (kTakesTurns) {
        begin_turn();
        end_turn();
      }
      pass_copies();
      release_values();
    }
  }

  // The item that comes next. Its marks wait above those of the item whose O is still to be written: registers are few.
  // In turns there is no deadlock in this wait: when a warpgroup has its turn here, the others have issued their last
  // use of the only Q.
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

  // The step from one item to the next, and where the mask cuts: O takes in the tile before, then come the scores of
  // `tile`, under which the O of the item before is written. Either product may be missing: at the beginning, at the
  // end, around items that see no keys. It runs all the same, on whatever lies there, and nobody looks at the result:
  // under a branch the compiler would run products one at a time.
  __device__ void careful_step(int& tile, bool changes) {
    const WorkState& work = shared.work(q_ring.count);
    const WorkState& before = shared.work(q_ring.previous().count);
    const bool output = is_marked(kValues);
    const Ring<kValueStages> multiplied = values();  // a tile may be passed before O takes it in
    if (output) wait_barrier(shared.v_full(values().stage()), values().parity());
    if constexpr (kTakesTurns) begin_turn();
    if constexpr (kTakesInLater && !kAddsOnTop) take_in(unit);
    issue_output(output, kAddsOnTop);
    if constexpr (!kOverlaps) wait_products<0>();
    if constexpr (kAddsFirst) take_in(unit_of(multiplied), kProductPieces - 1, output);
    // What comes next is looked up under this product.
    if (changes) look_up(tile);
    if constexpr (kOwnTiles) {
      if (changes && is_marked(kPassesFirst | kPassesLast << kNext)) pass_tile(output);
    }
    const bool scores = is_marked(changes ? kValues << kNext : kValues);
    if (scores) wait_barrier(shared.k_full(ring.stage()), ring.parity());
    begin_products();
    issue_scores();
    commit_products();
    if constexpr (kTakesTurns) end_turn();
    wait_products<1>();
    if constexpr (!kAddsFirst) take_in(unit_of(multiplied), kProductPieces - 1, output);
    if constexpr (kTakesInLater) clear_product();
    if (output) release_values();
    if (kAsksEarly && changes && scores) scales.ask(params, work);
    if (changes) {
      // For ptxas, which would prepare every exchange between lanes in finish_item for a warp that has parted.
      __syncwarp();
      if (is_marked(kItem)) finish_item(before, output);
      rows.clear();
      if constexpr (kAddsTiles) clear(o);
      marks >>= kNext;
      if (is_scaled(config) && scores) scales.receive(params, work);
    }
    const bool mixed = uniform(scores && is_mixed(work, tile)), last = next_tile(work, tile) < tiles.first;
    wait_products<0>();
    pin_registers(s);
    if (!scores) return;
    Tile here = {params, work, tile, inputs, scales};
    if constexpr (kHasUnits) here.keys_scale = shared.scales(ring.count).k;
    release_keys();
    ring.advance();
    if (last) release_queries();
    const Columns columns = mixed ? visible_columns(params, work, tile) : all_columns();
    apply_score_and_mask(s, here, mixed, columns);
    float factor[2];
    careful_softmax(s, rows, columns, kMainIsCareful || is_marked(kExact), factor, [](float) {});
    if (rose(factor)) rescale_output(factor);
    convert(p, s);
    if constexpr (kDrops) {
      Kept kept;
      draw(kept, shared, work, tile);
      drop<WeightRows::queries>(p, kept);
    }
  }

  // ---- items ----

  // O is complete: check it, and write what the spec asks for.
  __device__ void finish_item(const WorkState& work, bool saw_keys) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kSumsApart) rows.sum[h] = saw_keys ? rows.sum[h] : 0.0f;
      else if constexpr (kSumInMatrix) rows.sum[h] = saw_keys ? o[config.head_dim_v / 2 + 2 * h] : 0.0f;
      else rows.sum[h] = quad_sum(rows.sum[h]);
    }
    normalise(params, work, rows, o);
    if constexpr (!kMainIsCareful) {
      if (saw_keys && !is_marked(kExact) && reference_failed(work, rows, o)) note_failure(work);
    }
    if (kKeyParts && params.parts > 1) return store_part(part_of(work.rank), rows, o, saw_keys);
    if constexpr (config.lse != Lse::none || config.max_logit) store_rows(params, work, rows);
    const u32 kept = saw_keys ? 0xffffffff : 0;
    if constexpr (kStagesOutput) {
      if (!kMainIsCareful && is_marked(kExact)) wait_stores();  // of the same rows, which this thread has stored before
      send_output(maps.o, maps.o_steps, output_place(shared, q_ring.previous().stage()), work, o, kept);
    } else {
      store_output(params, work, o, kept);
    }
  }

  // The item will be done again, and what is written of it now is written over. Several threads may say so, all the
  // same.
  __device__ void note_failure(const WorkState& work) { atomicMax(&shared.redo(work.place), work.rank); }

  // May `tile`, which comes after `previous`, take the main step? With references of earlier tiles, every row must have
  // one.
  __device__ bool takes_main_step(const WorkState& work, int tile, int previous) {
    if (tile < tiles.first || (kMasksInStep ? tile > last_full(work) : is_mixed(work, tile))) return false;
    if constexpr (kMainIsCareful) return true;
    if (is_marked(kExact)) return false;
    if (is_marked(kAllBegun) && (!kMasksInStep || tile >= tiles.full_first)) return true;
    if (!is_mixed(work, previous)) return true;
    return !any_of_warpgroup(rows.reference[0] == -kInfinity || rows.reference[1] == -kInfinity);
  }

  // From `tile` on, down to the first that all rows see.
  __device__ void take_main_steps(const WorkState& work, int& tile) {
    if constexpr (kLooksInLoop) {
#pragma unroll 1
      do {
        step(work, tile, tile == tiles.first);
        if (tile % kLooksAfter == 0 && uniform(has_large_sum(rows, o))) lower();
        // Told so, or ptxas gathers the lanes of a warp in every step.
      } while (uniform(--tile >= first_of_steps()));
    } else {
      do {
        const int stop = kLooksAtTile ? tile
                         : kLooksBack ? max(tile - kLooksAfter + 1, first_of_steps())
                                      : first_of_steps();
#pragma unroll 1
        for (; tile >= stop; --tile) step(work, tile, tile == tiles.first);
        if constexpr (kRises) {
          if (uniform(kLooksBack ? has_large_sum(rows, o) : rows.large)) lower();
        }
      } while (kRises && tile >= first_of_steps());
    }
  }

  __device__ void run() {
    if constexpr (kTakesTurns) {
      if (warpgroup_id() == kWarpgroups - 1) end_turn();
    }
    bool changes = true;
    int tile = 0;
    while (true) {
      const WorkState& work = shared.work(q_ring.count);
      careful_step(tile, changes);
      if (changes) release_output();
      if (is_marked(kValues)) {
        const int previous = tile;
        tile = next_tile(work, tile);
        if (changes && is_marked(kIdle)) {
          marks &= ~kValues;
          pass_item(work, tile);
          tile = tiles.first - 1;
        } else if (takes_main_step(work, tile, previous)) {
          if constexpr (kKeepsQueries) queries.find(work, recompute(threadIdx.x));
          if constexpr (kCapped) rows.polynomial = rows.polynomial || suggests_small_arguments(rows, work.seq.k_len);
          take_main_steps(work, tile);
          tile = next_tile(work, tile + 1);
        }
        changes = tile < tiles.first;
      } else {
        const Work kind = static_cast<Work>(uniform(static_cast<int>(work.kind)));
        if (kind == Work::end) break;
        __syncwarp();
        if (kEndsUntold && kind == Work::last_flush) {
          release(shared.finished());
          wait_barrier(shared.finished(), 0);
          if (!uniform(shared.some_failed())) break;
        } else if (kind == Work::flush) {
          release(shared.flushed());
        }
        release_queries();
        changes = true;
      }
      if (changes) q_ring.advance();
    }
    if constexpr (kStagesOutput && !kReplacesQueries) wait_stores_read();
    // The first warpgroup was given one turn more than it took.
    if constexpr (kTakesTurns) {
      if (warpgroup_id() == 0) begin_turn();
    }
  }
};

__device__ inline void hopper_forward(const KernelParams& params, const TensorMaps& maps, const char* tiles = nullptr,
                                      float* parts = nullptr) {
  extern __shared__ __align__(1024) char memory[];
  const SharedMemory shared = {shared_address(memory), memory};
  set_up(shared, params);
  if (threadIdx.x < kThreadsPerWarpgroup) {
    shrink_registers<producer_registers(config)>();
    if (kInPages ? threadIdx.x < kProducers : threadIdx.x == 0) Producer{params, maps, shared, tiles}.run();
    if constexpr (kTransposesValues) {
      if (threadIdx.x >= kThreadsPerWarpgroup - 32 * kTransposingWarps) Transposer{shared}.run();
    }
  } else {
    grow_registers<consumer_registers(config)>();
    Consumer consumer{{}, {}, {}, params, maps, shared};
    consumer.set_parts(parts);
    consumer.run();
  }
}

}  // namespace flashjit
