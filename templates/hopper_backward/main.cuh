// The main loop of backward for sm_90a. A block takes one tile of keys after the other, 64 for each of its warpgroups, and
// goes over the query tiles that see them. Scores are kept transposed, keys down and queries across: so P^T and dS^T are, as a thread
// has them, what the products for dV and dK take from registers. dS goes through shared memory to all warpgroups, which
// make a part of dQ each and add it to sums in memory.
#pragma once

#include "templates/hopper_backward/cluster.cuh"
#include "templates/hopper_backward/dealer.cuh"
#include "templates/hopper_backward/finish.cuh"
#include "templates/hopper_backward/kept.cuh"
#include "templates/hopper_backward/order.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/producer.cuh"
#include "templates/hopper_backward/queries.cuh"
#include "templates/hopper_backward/roles.cuh"
#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

constexpr int kDqColumns = dq_columns(config);
// Which weights are kept is found out beside products: those of the scores where registers allow, else the last ones of
// the step before.
constexpr bool kDrawsFirst = kTileQ > 64;
using QueryGradients = float[kDqColumns / 2];

// (A template, as are the functions below: products that a kernel does not have are then not asked for.)
template <DqSums dq_sums_by>
struct Consumer {
  static constexpr bool kDqApart = dq_sums_by == DqSums::launch;

  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;
  float* dq_sums;
  Turns turns;
  u32 keys;  // of the item's, the first of this warpgroup
  BackwardItem item;
  u32 k, v;   // where they are
  u32 place;  // of K
  u32 item_place;
  Ones ones;

  float dk[config.head_dim_qk / 2], dv[config.head_dim_v / 2];
  Scores s, dp;
  QueryGradients dq;
  Fragments p, ds;
  Kept kept;
  float* head_sums;
  PartSums part_sums;
  bool keeps;  // dS is kept, and its gradients come later
  OfParameters of_parameters;

  __device__ void issue_dv(u32 stage) {
    multiply_dv(dv, p, descriptor(shared.d_o(stage), kLayout.d_o.panel_bytes()), true);
  }
  __device__ void issue_dk(u32 stage) {
    multiply_dk(dk, ds, descriptor(shared.q(stage), kLayout.q.panel_bytes()), true);
  }
  template <int registers>
  __device__ void issue_dq(float (&sums)[registers], u32 exchange) {
    constexpr bool kColumns = splits_dq_columns(config);
    const u32 rows = kColumns ? 0 : keys * kPanelWidth;
    const u32 columns =
        kColumns ? turns.warpgroup * kDqColumns / kLayout.k.panel_columns() * kLayout.k.panel_bytes() : 0;
    multiply_dq(sums, descriptor(shared.exchange(exchange) + rows), descriptor(k + columns, kLayout.k.panel_bytes()));
  }

  __device__ void hand_out_ds(u32 exchange) {
    store_ds(shared.exchange(exchange) + turns.warpgroup * kLayout.ds.panel_bytes(), ds);
    __syncwarp();
    release(shared.exchange_full(exchange));
  }

  // Adds this warpgroup's part of dQ to memory. Columns behind the head dim are left out.
  __device__ void add_dq(const QueryGradients& sums, Int64 tile) {
    const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
    float* to =
        dq_sums + tile * dq_sum_floats(config) + turns.warpgroup * (kRowsPerWarpgroup * kDqColumns) + thread * 4;
    constexpr bool kAll = !splits_dq_columns(config) || kDqColumns * kWarpgroups == config.head_dim_qk;
#pragma unroll
    for (int j = 0; j < kDqColumns / 8; ++j) {
      if (kAll || turns.warpgroup * kDqColumns + j * 8 < config.head_dim_qk)
        add_to_global(to + j * 4 * kThreadsPerWarpgroup, sums[4 * j], sums[4 * j + 1], sums[4 * j + 2],
                      sums[4 * j + 3]);
    }
  }

  // With sums in order: until a step's dQ may be added.
  __device__ void wait_for_turn(int number) const {
    if constexpr (kOrdered) wait_barrier(shared.turn(number % 2), number / 2 % 2);
  }
  // dQ of a step, whose dS has been read.
  __device__ void give_dq(const QueryGradients& sums, int number, const Steps& at) {
    const u32 empty = shared.exchange_empty(number % 2);
    if constexpr (!kOrdered) release(empty);
    add_dq(sums, workspace_tile(params, item.seq, at.head, at.tile));
    if constexpr (kOrdered) {
      __syncwarp();
      release(empty);
    }
  }

  __device__ void copy_own_inputs(const Steps& at) {
    const ScorePlace place(item, keys, at);
    flashjit::copy_own_inputs(shared, turns.warpgroup, params, place.seq, at.tile * kTileQ,
                              place.key - static_cast<int>(lane_id() / 4));
  }

  // S and dP are issued, relative to what the row terms say. P = exp(S); dV += P dO is issued, so that it runs while
  // dS = P dP is made.
  __device__ void make_score_gradients(int number, const Steps& at, const Steps& before) {
    const u32 stage = number % kStages;
    if constexpr (kDrops && kDrawsFirst) {
      draw(kept, shared, item, keys, at);
      pin_numbers(kept);
    }
    wait_barrier(shared.q_full(stage), number / kStages % 2);
    wait_products<0>();
    pin_fragments(p);
    pin_fragments(ds);
    if (before.any()) release(shared.q_empty((number - 1) % kStages));
    if constexpr (kHasInputs) {
      if (!maps.has_inputs) copy_own_inputs(at);  // here there are registers for it
    }
    if constexpr (kGradientTiles) ones.set(0, recompute(threadIdx.x));  // kept, it would be one register too many
    begin_products();
    issue_scores(s, shared, ones, k + keys * kPanelWidth, stage);
    commit_products();
    issue_dp(dp, shared, ones, v + keys * kPanelWidth, stage, stage);
    commit_products();
    turns.end();
    if constexpr (kDrops && !kDrawsFirst) draw(kept, shared, item, keys, at);
    if constexpr (config.gradients > 0 && !kSumsLater) return make_gradients_with_parameters(number, at, before);
    InputWords words;
    if constexpr (kHasInputs) {
      read_inputs(words, shared, turns.warpgroup, maps.has_inputs != 0, params, item.seq, number);
    }
    wait_products<1>();
    pin_registers(s);
    make_probabilities(s, p, params, item, keys, at, shared.terms(stage), words);
    if constexpr (kSignsTell) mark_dropped(s, p, kept);
    else if constexpr (kDrops) drop<WeightRows::keys>(p, kept);
    pin_registers(s);
    begin_products();
    issue_dv(stage);
    commit_products();
    // Not where they are read: loads are still on their way then, behind those of the products, when the next inputs come.
    if (kHasInputs && maps.has_inputs) release(shared.inputs_empty(turns.warpgroup));
    wait_products<1>();
    pin_registers(dp);
    const ByWeight by_weight = {dp, kept, shared.terms(stage)};
    if constexpr (config.gradients > 0)
      make_ds_and_sums(ds, s, by_weight, of_parameters, params, ScorePlace(item, keys, at));
    else make_ds(ds, s, by_weight);
  }

  // Of what scores load: the keys of a warp, query by query.
  __device__ void prefetch(const Steps& at) {
    ScorePlace place(item, keys, at);
    const int lane = static_cast<int>(lane_id()), key = place.key - lane / 4;
#pragma unroll
    for (int row = 0; row < kTileQ; row += 32) {
      const int q = min(at.tile * kTileQ + row + lane, place.seq.q_len - 1);
      Variant::prefetch(params, place.seq, q, min(key, place.seq.k_len - 1));
      Variant::prefetch(params, place.seq, q, min(key + 15, place.seq.k_len - 1));
    }
  }

  // Where gradients of parameters are wanted, all is made when dP is there: scores are not kept otherwise.
  __device__ void make_gradients_with_parameters(int number, const Steps& at, const Steps& before) {
    const u32 stage = number % kStages;
    prefetch(at);
    wait_products<0>();
    pin_registers(s);
    pin_registers(dp);
    make_all_gradients(s, {dp, kept, shared.terms(stage)}, p, ds, of_parameters, params, ScorePlace(item, keys, at),
                       is_mixed(item, at.tile));
    if constexpr (kDrops) drop<WeightRows::keys>(p, kept);
    begin_products();
    issue_dv(stage);
    commit_products();
  }

  // When dV is there, which takes no time by now, P leaves room for this.
  __device__ void put_gradients(const Steps& at) {
    wait_products<0>();
    pin_fragments(p);
    put_gradient_tiles(s, params, item, keys, at);
  }

  // To the next step; false: this was the last.
  __device__ bool advance(Steps& at, const Steps& before) {
    const bool more = at.advance(params, item);
    if constexpr (config.gradients > 0) {
      if (!more || at.head != before.head) {
        const ScorePlace place(item, keys, before);
        of_parameters.end_head(params, place.seq, place.key, head_sums_of(params, head_sums), item.k_lo / kTileKv,
                               static_cast<int>(turns.warpgroup * 4 + threadIdx.x / 32 % 4));
      }
    }
    return more;
  }

  // dS goes to shared memory; then dQ of the step before, whose dS all have written by now, and dK += dS Q are issued, and
  // dQ is added to memory while dK is computed.
  __device__ void step(int number, const Steps& at, const Steps& before) {
    const u32 exchange = number % 2;
    make_score_gradients(number, at, before);
    wait_barrier(shared.exchange_empty(exchange), number / 2 % 2 ^ 1);
    hand_out_ds(exchange);
    if constexpr (kGradientTiles) {
      if (!config.keeps_ds || !keeps) put_gradients(at);
    }
    if (before.any())
      wait_for_turn(number - 1);  // not in the warpgroup's turn at products, which would hold up the other
    turns.begin();
    if (before.any()) wait_barrier(shared.exchange_full(exchange ^ 1), (number - 1) / 2 % 2);
    begin_products();
    issue_dq(dq, exchange ^ 1);
    commit_products();
    issue_dk(number % kStages);
    commit_products();
    wait_products<1>();
    pin_registers(dq);
    if (before.any()) give_dq(dq, number - 1, before);
  }

  __device__ void step_without_dq(int number, const Steps& at, const Steps& before) {
    make_score_gradients(number, at, before);
    if constexpr (kGradientTiles) put_gradients(at);
    turns.begin();
    begin_products();
    issue_dk(number % kStages);
    commit_products();
  }

  // dQ of the last step of an item.
  __device__ void add_last_dq(int number, const Steps& last) {
    QueryGradients sums;
    wait_barrier(shared.exchange_full(number % 2), number / 2 % 2);
    begin_products();
    issue_dq(sums, number % 2);
    commit_products();
    wait_products<0>();
    pin_registers(sums);
    release(shared.k_empty(place));
    wait_for_turn(number);
    give_dq(sums, number, last);
  }

  // The last reads of K.
  __device__ void end_keys(int number, const Steps& last) {
    if constexpr (!kDqApart) {
      if (last.any()) return add_last_dq(number, last);
    }
    release(shared.k_empty(place));
  }

  // If others have queries of the same keys. False: dK and dV are left to one of them.
  __device__ bool add_up(int number, bool any) {
    wait_for_launch_before();  // which has set sums to zero
    const int warp =
        number * cut_warps(config) + static_cast<int>(turns.warpgroup * 4 + recompute(threadIdx.x) / 32 % 4);
    float *of_dk = part_sums.of_warp(warp, cut_floats(config)), *of_dv = of_dk + 16 * config.head_dim_qk;
    if (any) {
      PartSums::add(of_dk, dk);
      PartSums::add(of_dv, dv);
    }
    if (!part_sums.is_last(warp, params.parts)) return false;
    PartSums::read(dk, of_dk);
    PartSums::read(dv, of_dv);
    return true;
  }

  // Whose they are is read once more: kept through the loop it would cost registers.
  __device__ void store_keys(const BackwardItem& its, bool any) {
    if (kCutsItems && params.parts > 1 && !add_up(uniform(its.number), any)) return;
    const int key = uniform(its.k_lo) + static_cast<int>(keys);
    store_rows<config.output_dk, config.head_dim_qk>(params.dk, key_begin(params.dk_stride, its.seq),
                                                     params.dk_stride.token, key, its.seq.k_len,
                                                     config.scale * kDropoutFactor, dk);
    store_rows<config.output_dv, config.head_dim_v>(params.dv, key_begin(params.dv_stride, its.seq),
                                                    params.dv_stride.token, key, its.seq.k_len, kDropoutFactor, dv);
  }

  // All of an item. `number` is that of the last step, of all items.
  __device__ void visit(int& number) {
#pragma unroll
    for (float& x : dk) x = 0;
#pragma unroll
    for (float& x : dv) x = 0;
    Steps at;
    const bool any = at.begin(params, item);
    Steps before = Steps::none();
    int next = uniform(number + 1);  // ptxas lets no descriptor be in uniform registers otherwise
    turns.enter();
    if (any) {
      do {
        number = next++;
        if constexpr (kHasInputs && kScoresApart) number = uniform(number);  // that spares a register
        if constexpr (kDqApart) step_without_dq(number, at, before);
        else step(number, at, before);
        before = at;
      } while (advance(at, before));
      wait_products<0>();
      pin_registers(dk);
      pin_registers(dv);
      release(shared.q_empty(number % kStages));
    }
    release(shared.v_empty());
    turns.leave();
    // Before dK and dV are stored, if V of the next item comes to where K is.
    if constexpr (kLayout.swaps) end_keys(number, before);
    store_keys(shared.item(item_place), before.any());
    if constexpr (!kLayout.swaps) end_keys(number, before);
  }

  __device__ void run() {
    ones.set();
    int number = -1;
#pragma unroll 1
    for (int round = 0;; ++round) {
      if (!wait_for_item(item, params, shared, round)) return;
      place = uniform(round % kPlaces), item_place = uniform(round % kItemPlaces);
      k = uniform(shared.k(place)), v = uniform(shared.v(place));
      wait_barrier(shared.k_full(place), round / kPlaces % 2);
      wait_barrier(shared.v_full(), round % 2);
      visit(number);
      release(shared.item_empty(item_place));
    }
  }
};

// Zeros in gradients of parameters where no query tile is visited.
__device__ inline void zero_unvisited(const KernelParams& params, const BackwardItem& item) {
  const int begin = item.first * kTileQ, end = (item.last + 1) * kTileQ, lane = static_cast<int>(lane_id()),
            keys = item.seq.k_len - item.k_lo - lane;
  each_read([&](auto number) {
    constexpr int read = decltype(number)::value;
    if constexpr (Variant::covers_all(read)) {
      const auto place = [&](int q, int k) { return Variant::element(Parameter<read>(), params, item.seq, q, k); };
      const Int64 down = place(1, 0) - place(0, 0), right = place(0, 32) - place(0, 0);
      float* to = element_of_gradient<read>(params, item.seq, 0, item.k_lo + lane);
#pragma unroll 1
      for (int q = 0; q < item.seq.q_len; ++q, to += down) {
        if (q >= begin && q < end) continue;
#pragma unroll
        for (int i = 0; i < kTileKv / 32; ++i)
          if (i * 32 < keys) to[i * right] = 0.0f;
      }
    }
  });
}

// By a warp that has nothing else to do, and few registers.
__device__ inline void zero_items(const KernelParams& params, const SharedMemory& shared) {
  each_item(params, shared, [&](const BackwardItem& item, u32 done, u32) {
    zero_unvisited(params, item);
    release(done);
  });
}

// One block for each tile of keys of each KV head and batch index, or as many as there are SMs for all of them.
template <DqSums dq_sums_by = config.dq>
__device__ inline void hopper_backward(const KernelParams& params, const TensorMaps& maps, const char* row_terms,
                                       float* dq_sums = nullptr, float* head_sums = nullptr, int* counters = nullptr,
                                       int* added = nullptr, int* dealt = nullptr, float* kv_sums = nullptr,
                                       int* parts_done = nullptr, char* kept_ds = nullptr) {
  extern __shared__ __align__(1024) char memory[];
  const SharedMemory shared = {shared_address(memory), memory};
  if constexpr (kCounts) release_next_launch();
  BackwardItem item = {};
  if constexpr (deals_to_clusters(config)) take_item(shared, item_counter(params, dealt));
  if constexpr (!kTakesItems) {
    item = item_of_block(params, shared);
    if (kPacked && item.k_lo >= item.seq.k_len) return;
  }
  const bool keeps = config.keeps_ds && kept_ds;
  set_up(shared, params, keeps);
  const u32 warpgroup = uniform(threadIdx.x / kThreadsPerWarpgroup);
  if (warpgroup == kWarpgroups) {
    shrink_registers<backward_producer_registers(config)>();
    const u32 warp = uniform(threadIdx.x / 32 % 4);
    Producer producer = {params, maps, row_terms, shared};
    if constexpr (kTakesItems) {
      // Each returns, so that ptxas does not keep which warp this is.
      if (warp == 0) return producer.run();
      if (warp == 1) return Dealer{params, shared, dq_sums, counters, item_counter(params, dealt)}.run();
      if (kCounts && warp == 2) return count_items(params, shared, counters, added);
      if constexpr (kOrdered) {
        u32 step = 0;
        each_item(params, shared, [&](BackwardItem& its, u32 done, u32) {
          wait_for_turns(params, shared, its, added, step);
          release(done);
        });
      }
      if (keeps && warp == 3) return keep_items(params, shared, kept_ds);
      if (kZeroesItems && warp == 3) zero_items(params, shared);
    } else {
      u32 step = 0;
      if (warp == 0) return producer.copy_item(item);
      if (kOrdered && warp == 1) return wait_for_turns(params, shared, item, added, step);
      if (kOrdered && warp == 2) tell_steps(params, shared, item, added, step);
    }
  } else if (kInClusters && warpgroup == 2) {
    shrink_registers<kDqRoleRegisters>();
    if constexpr (kInClusters) add_query_gradients(shared, dq_sums);
  } else {
    grow_registers<backward_consumer_registers(config)>();
    if constexpr (kHasRoles) {
      if (warpgroup == 0) ScoreRole{params, shared, item, {0}}.run({kv_sums, parts_done});
      else GradientRole{params, shared, item, {1}}.run({kv_sums, parts_done});
    } else {
      Consumer<dq_sums_by> consumer{params, maps, shared, dq_sums, {warpgroup}, warpgroup * kRowsPerWarpgroup};
      if constexpr (config.gradients > 0) consumer.head_sums = head_sums;
      if constexpr (config.keeps_ds) consumer.keeps = keeps;
      if constexpr (kCutsItems) consumer.part_sums = {kv_sums, parts_done};
      consumer.run();
    }
  }
}

}  // namespace flashjit
