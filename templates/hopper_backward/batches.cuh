// The gradient of a tensor [.., query, .., key] that all batch indices share, by a launch of its own: a block has a tile of
// queries and keys of a head, goes over batch indices, makes scores and dP of each once more, and keeps the sums of dS in
// registers. So each element is written once. (Added up in memory, by the loop, it is as much of `red` as batch indices
// there are, 8.6 GB for four of them at 4096 tokens and 32 heads, and zeros before.)
#pragma once

#include "templates/hopper_backward/gradient_tiles.cuh"
#include "templates/hopper_backward/producer.cuh"
#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

constexpr BatchesLayout kBatches = batches_layout(config);

struct BatchesMemory {
  u32 base;

  __device__ u32 k(u32 stage) const { return base + stage * kLayout.k.bytes(); }
  __device__ u32 v(u32 stage) const { return base + kBatches.v_offset + stage * kLayout.v.bytes(); }
  __device__ u32 q(u32 stage) const { return base + kBatches.q_offset + stage * kLayout.q.bytes(); }
  __device__ u32 d_o(u32 stage) const { return base + kBatches.d_o_offset + stage * kLayout.d_o.bytes(); }
  __device__ u32 terms(u32 stage) const { return base + kBatches.terms_offset + stage * row_terms_room(config); }
  // What the score reads, of each warpgroup: it is the same for all batch indices.
  __device__ u32 inputs(u32 warpgroup, u32 place) const {
    return base + kBatches.inputs_offset + (warpgroup * kBatchesPlaces + place) * tile_inputs_bytes(config);
  }

  __device__ u32 barrier(u32 index) const { return base + kBatches.barrier_offset + index * 8; }
  __device__ u32 k_full(u32 stage) const { return barrier(stage); }
  __device__ u32 k_empty(u32 stage) const { return barrier(kBatchesStages + stage); }
  __device__ u32 q_full(u32 stage) const { return barrier(2 * kBatchesStages + stage); }
  __device__ u32 q_empty(u32 stage) const { return barrier(3 * kBatchesStages + stage); }
  __device__ u32 inputs_full(u32 warpgroup, u32 place) const {
    return barrier(4 * kBatchesStages + 2 * (warpgroup * kBatchesPlaces + place));
  }
  __device__ u32 inputs_empty(u32 warpgroup, u32 place) const { return inputs_full(warpgroup, place) + 8; }
};

// Blocks of a cluster have neighbouring tiles of keys, and share what comes of the queries.
__device__ inline int rank_of_keys() { return static_cast<int>(blockIdx.x % kBatchesCluster); }

// Of a head, a query tile and a tile of keys.
struct ScoreTile {
  int head, query_tile, k_lo;
  __device__ ScoreTile(const KernelParams& params, int number) {
    // Kept around the loop, they would take registers.
    const int of_keys = static_cast<int>(recompute(key_tiles(params)) + kBatchesCluster - 1) / kBatchesCluster,
              of_queries = static_cast<int>(recompute(params.tiles_q));
    head = number / (of_keys * of_queries);
    query_tile = number / of_keys % of_queries;
    // So that a block's tiles are not all on one side of the diagonal.
    k_lo = ((number + query_tile) % of_keys * kBatchesCluster + rank_of_keys()) * kTileKv;
  }
  // The keys of a batch index, and the queries that see them.
  __device__ BackwardItem of_batch(const KernelParams& params, int b) const {
    BackwardItem item;
    item.seq = sequence_of(params, b, head);
    item.k_lo = k_lo;
    if (k_lo >= item.seq.k_len)  // where tiles of keys are not in pairs
      item.first = item.full_first = 0, item.last = item.full_last = -1;
    else find_queries(params, item);
    return item;
  }
  // Does any query of the tile see any key?
  __device__ bool is_visible(const BackwardItem& item) const {
    return item.first <= query_tile && query_tile <= item.last;
  }
  // The next batch index that has something to add, in any block of the cluster, from b on.
  __device__ int next_batch(const KernelParams& params, int b) const {
    for (; b < params.batch; ++b) {
      ScoreTile tile = *this;
      tile.k_lo -= tile.k_lo % (kBatchesCluster * kTileKv);
#pragma unroll
      for (int i = 0; i < kBatchesCluster; ++i, tile.k_lo += kTileKv)
        if (tile.is_visible(tile.of_batch(params, b))) return b;
    }
    return b;
  }
};

// All that a cluster has: visit(tile, number). (The launch counts them for each block and batch index.)
__device__ inline bool is_score_tile(const KernelParams& params, int number) {
  return number * kBatchesCluster * params.batch < params.items;
}
template <class Visit>
__device__ inline void each_score_tile(const KernelParams& params, const Visit& visit) {
#pragma unroll 1
  for (int number = blockIdx.x / kBatchesCluster; is_score_tile(params, number); number += gridDim.x / kBatchesCluster)
    visit(ScoreTile(params, number), number);
}

// A warp, of which the first lane copies: for each batch index K, V, Q, dO and row terms, and once what the score reads.
struct BatchesProducer {
  const KernelParams& params;
  const TensorMaps& maps;
  const char* row_terms;
  const BatchesMemory& shared;
  int number = 0, fills = 0;  // of the step, and of tiles of inputs

  __device__ static bool leads() { return lane_id() == 0; }

  __device__ void copy_keys(const BackwardItem& item) {
    const u32 stage = number % kBatchesStages, full = shared.k_full(stage);
    wait_barrier(shared.k_empty(stage), number / kBatchesStages % 2 ^ 1);
    if (!leads()) return;
    arrive_expecting(full, kLayout.k.bytes() + kLayout.v.bytes());
    copy_key_rows(shared.k(stage), kLayout.k, maps.k, full, item.seq, item.k_lo, kEvictLast);
    copy_key_rows(shared.v(stage), kLayout.v, maps.v, full, item.seq, item.k_lo, kEvictLast);
  }
  // Q is copied by the first block of a cluster, and dO by the last, to all of them.
  __device__ static void copy_to_all(u32 to, const PanelLayout& panels, const TensorMap& map, u32 full,
                                     const Sequence& seq, int q) {
#pragma unroll
    for (int panel = 0; panel < panels.panels(); ++panel) {
      const u32 at = to + panel * panels.panel_bytes();
      const int column = panel * panels.panel_columns();
      copy_box_to((1 << kBatchesCluster) - 1, at, map, full, kEvictLast, column, q, seq.h, seq.b);
    }
  }
  __device__ void copy_queries(const BackwardItem& item, int tile) {
    const u32 stage = number % kBatchesStages, full = shared.q_full(stage);
    wait_barrier(shared.q_empty(stage), number / kBatchesStages % 2 ^ 1);
    if (!leads()) return;
    arrive_expecting(full, kLayout.q.bytes() + kLayout.d_o.bytes() + row_terms_bytes(config));
    if (rank_of_keys() == 0) copy_to_all(shared.q(stage), kLayout.q, maps.q, full, item.seq, tile * kTileQ);
    copy_bytes(shared.terms(stage),
               row_terms + workspace_tile(params, item.seq, item.seq.h, tile) * row_terms_bytes(config),
               row_terms_bytes(config), full);
    if (rank_of_keys() == kBatchesCluster - 1)
      copy_to_all(shared.d_o(stage), kLayout.d_o, maps.o, full, item.seq, tile * kTileQ);
  }
  __device__ void copy_inputs(const BackwardItem& item, int tile) {
    const u32 place = fills % kBatchesPlaces, parity = fills / kBatchesPlaces % 2 ^ 1;
    ++fills;
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      const u32 full = shared.inputs_full(warpgroup, place);
      wait_barrier(shared.inputs_empty(warpgroup, place), parity);
      if (!leads()) continue;
      arrive_expecting(full, tile_inputs_bytes(config));
      Variant::visit_inputs(params, item.seq, [&](auto input, int x, int y) {
        constexpr int i = decltype(input)::value;
#pragma unroll
        for (int row = 0; row < kTileQ; row += input_rows(config, i))
          copy_box(shared.inputs(warpgroup, place) + row * kPanelWidth, maps.inputs[input_number(config, i)], full,
                   kEvictFirst, item.k_lo + warpgroup * kRowsPerWarpgroup, tile * kTileQ + row, x, y);
      });
    }
  }

  // What the score reads for the block's next tile, to L2: from memory it would come too late.
  __device__ void prefetch_inputs(int number) {
    if (!maps.has_inputs || !is_score_tile(params, number)) return;
    const ScoreTile tile(params, number);
    const int b = tile.next_batch(params, 0);
    if (b >= params.batch || !leads()) return;
    Variant::visit_inputs(params, sequence_of(params, b, tile.head), [&](auto input, int x, int y) {
      constexpr int i = decltype(input)::value;
#pragma unroll 1
      for (int key = 0; key < kTileKv; key += kRowsPerWarpgroup)
#pragma unroll
        for (int row = 0; row < kTileQ; row += input_rows(config, i))
          prefetch_box(maps.inputs[input_number(config, i)], tile.k_lo + key, tile.query_tile * kTileQ + row, x, y);
    });
  }

  __device__ void run() {
    each_score_tile(params, [&](const ScoreTile& tile, int number) {
      prefetch_inputs(number + gridDim.x / kBatchesCluster);
      bool has_inputs = !maps.has_inputs;
      for (int b = tile.next_batch(params, 0); b < params.batch; b = tile.next_batch(params, b + 1)) {
        const BackwardItem item = tile.of_batch(params, b);
        copy_keys(item);
        copy_queries(item, tile.query_tile);
        if (!has_inputs) copy_inputs(item, tile.query_tile);
        has_inputs = true;
        ++number;
      }
    });
  }
};

template <int scores>
struct BatchesConsumer {
  const KernelParams& params;
  const TensorMaps& maps;
  const BatchesMemory& shared;
  u32 warpgroup;
  Ones ones;
  int number = 0;      // of the step, of all tiles
  int tiles_read = 0;  // of those that some batch index sees
  bool read = false;   // the last of them, whose inputs have not been released

  float sums[scores], s[scores], dp[scores];

  __device__ u32 keys() const { return warpgroup * kRowsPerWarpgroup; }  // of the tile's, this warpgroup's first
  __device__ u32 inputs() const { return shared.inputs(warpgroup, tiles_read % kBatchesPlaces); }

  // What the score reads is there. It stays, and is read for each batch index anew: there are no registers to keep it.
  __device__ void wait_for_inputs(const BackwardItem& item, const Steps& at) const {
    const u32 place = tiles_read % kBatchesPlaces;
    if (maps.has_inputs) return wait_barrier(shared.inputs_full(warpgroup, place), tiles_read / kBatchesPlaces % 2);
    const ScorePlace of_lane(item, keys(), at);
    __syncwarp();
    Variant::visit_inputs(params, of_lane.seq, [&](auto input, int, int) {
      copy_own_keys<decltype(input)::value>(inputs(), params, of_lane.seq, at.tile * kTileQ,
                                            of_lane.key - static_cast<int>(lane_id() / 4));
    });
    __syncwarp();
  }

  // S to P.
  __device__ void make_probabilities(const BackwardItem& item, const Steps& at) {
    ScorePlace place(item, keys(), at);
    const u32 from = matrices_of_warp(inputs());
    u32 words[kHasInputs ? 4 * kPairWords : 1];  // of eight scores
#pragma unroll
    for (int i = 0; i < scores; ++i) {
      if (i % 8 == 0) {
        place.query = static_cast<int>(recompute(place.query));
        Variant::visit_inputs(params, place.seq, [&](auto input, int, int) {
          read_sixteen<decltype(input)::value>(from + i / 8 * 16 * kPanelWidth, words);
        });
      }
      const ReadParams of_pair = {params, words + i % 8 / 2 * kPairWords, i % 2};
      s[i] = Variant::score_and_slope(of_pair, place.seq, s[i] * config.scale, place.q(i), place.k(i)).score;
    }
    if (is_mixed(item, at.tile)) {
      each_hidden(params, ScorePlace(item, keys(), at), [&](int i) { s[i] = kHidden; });
      pin_registers(s);  // keeps what follows out of the branch
    }
#pragma unroll
    for (int i = 0; i < scores; ++i) s[i] = exp2_approx(s[i] * kLog2e);
    pin_registers(s);
  }

  // What scores give. A P of 0 counts for nothing, whatever dP is, and a dS of 0, whatever the derivative is.
  __device__ void add_scores(const ScorePlace& place) {
    each_read([&](auto which) {
      constexpr int read = decltype(which)::value;
      if constexpr (Variant::in_tiles(read)) {
#pragma unroll
        for (int i = 0; i < scores; ++i) {
          const auto all = Variant::score_and_derivatives(params, place.seq, 0.0f, place.q(i), place.k(i));
          const float derivative = all.by_read[read];  // mostly 1
          if (s[i] != 0.0f && (fabsf(derivative) < kInfinity || s[i] * dp[i] != 0.0f))
            sums[i] = fmaf(s[i] * derivative, dp[i], sums[i]);
        }
      }
    });
  }

  // A batch index. `first`: of those that see the tile.
  __device__ void step(const ScoreTile& tile, int b, bool first) {
    const u32 stage = number % kBatchesStages, parity = number / kBatchesStages % 2;
    wait_barrier(shared.k_full(stage), parity);
    wait_barrier(shared.q_full(stage), parity);
    ones.set(0, recompute(threadIdx.x));
    begin_products();
    issue_scores(s, shared, ones, shared.k(stage) + keys() * kPanelWidth, stage);
    commit_products();
    issue_dp(dp, shared, ones, shared.v(stage) + keys() * kPanelWidth, stage, stage);
    commit_products();
    // Not where they are read: loads are on their way then, but by now scores have been made of them.
    if (read) release(shared.inputs_empty(warpgroup, (tiles_read + 1) % kBatchesPlaces));
    read = false;
    // Kept, it would be in the way of sums.
    const BackwardItem item = tile.of_batch(params, static_cast<int>(recompute(b)));
    const Steps at = {tile.query_tile, tile.head};
    if (first) wait_for_inputs(item, at);
    wait_products<1>();
    pin_registers(s);
    make_probabilities(item, at);
    wait_products<0>();
    pin_registers(dp);
    release(shared.k_empty(stage));
    if (lane_id() == 0) {
#pragma unroll
      for (int block = 0; block < kBatchesCluster; ++block) arrive_in(shared.q_empty(stage), block);
    }
    add_scores(ScorePlace(item, keys(), at));
  }

  // Sums, element by element: eight lanes have 32 bytes of a row, and to exchange them first takes longer. `in_rows`: all of
  // them exist, and keys follow each other.
  template <bool in_rows>
  __device__ void store(const BackwardItem& item, const Steps& at) const {
    each_read([&](auto which) {
      constexpr int read = decltype(which)::value;
      if constexpr (Variant::in_tiles(read)) {
        const ScorePlace place(item, keys(), at);
        const auto step = [&](int q, int k) {
          return element_of_gradient<read>(params, place.seq, q, k) -
                 element_of_gradient<read>(params, place.seq, 0, 0);
        };
        const Int64 down = step(1, 0), right = in_rows ? 8 : step(0, 8);
        float* to = element_of_gradient<read>(params, place.seq, place.query, place.key);
#pragma unroll
        for (int i = 0; i < scores; i += 4, to += 8 * down)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (in_rows || (place.q(i + e) < place.seq.q_len && place.k(i + e) < place.seq.k_len))
              to[e % 2 * down + e / 2 * right] = sums[i + e];
      }
    });
  }
  __device__ bool keys_follow(const Sequence& seq) const {
    bool follow = true;
    each_read([&](auto which) {
      constexpr int read = decltype(which)::value;
      if constexpr (Variant::in_tiles(read))
        follow = element_of_gradient<read>(params, seq, 0, 1) - element_of_gradient<read>(params, seq, 0, 0) == 1;
    });
    return follow;
  }

  __device__ void visit(const ScoreTile& tile) {
#pragma unroll
    for (float& x : sums) x = 0;
    bool first = true;
#pragma unroll 1
    for (int b = uniform(tile.next_batch(params, 0)); b < params.batch; b = uniform(tile.next_batch(params, b + 1))) {
      step(tile, b, first);
      number = uniform(number + 1);
      first = false;
    }
    if (!first) {
      ++tiles_read;
      read = maps.has_inputs;
    }
    BackwardItem item;
    item.seq = sequence_of(params, 0, tile.head);
    item.k_lo = static_cast<int>(recompute(tile.k_lo));
    const Steps at = {static_cast<int>(recompute(tile.query_tile)), tile.head};
    if (keys_follow(item.seq) && is_whole(item, at.tile)) store<true>(item, at);
    else store<false>(item, at);
  }
};

// (A template, so that its products need not exist where it is not called.)
template <int scores = kScores>
__device__ inline void backward_batches(const KernelParams& params, const TensorMaps& maps, const char* row_terms) {
  extern __shared__ __align__(1024) char memory[];
  const BatchesMemory shared = {shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kBatchesStages; ++i) {
      init_barrier(shared.k_full(i), 1);
      init_barrier(shared.k_empty(i), kWarpgroups * 4);
      init_barrier(shared.q_full(i), 1);
      init_barrier(shared.q_empty(i), kBatchesCluster * kWarpgroups * 4);
    }
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup)
      for (int i = 0; i < kBatchesPlaces; ++i) {
        init_barrier(shared.inputs_full(warpgroup, i), 1);
        init_barrier(shared.inputs_empty(warpgroup, i), 4);
      }
    publish_barriers();
  }
  sync_cluster();
  const u32 warpgroup = uniform(threadIdx.x / kThreadsPerWarpgroup);
  if (warpgroup == kWarpgroups) {
    shrink_registers<backward_producer_registers(config)>();
    if (uniform(threadIdx.x / 32) == kWarpgroups * 4) BatchesProducer{params, maps, row_terms, shared}.run();
  } else {
    grow_registers<backward_consumer_registers(config)>();
    BatchesConsumer<scores> consumer = {params, maps, shared, warpgroup};
    each_score_tile(params, [&](const ScoreTile& tile, int) { consumer.visit(tile); });
  }
  sync_cluster();  // none leaves while others write to it
}

}  // namespace flashjit
