// The main loop where dK and dV do not fit into the registers of one warpgroup. A block has 64 keys. The first warpgroup
// computes scores and dV, the second dP and dK; P goes from the one to the other in fp32: a key may have no P that fp16 can
// hold. dQ is made apart, or by a third warpgroup (cluster.cuh).
#pragma once

#include "templates/hopper_backward/cluster.cuh"
#include "templates/hopper_backward/order.cuh"
#include "templates/hopper_backward/output.cuh"
#include "templates/hopper_backward/producer.cuh"
#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

// S = K Q^T of 64 keys, relative to the LSE unless scores are made apart; and dP = V dO^T, relative to D unless some of it
// is dropped. (Templates: row terms that nothing needs are then not asked for.)
template <int scores>
__device__ inline void issue_scores(float (&s)[scores], const SharedMemory& shared, const Ones& ones, u32 k,
                                    u32 stage) {
  if constexpr (!kScoresApart) multiply_terms(s, ones.of, rows_descriptor(shared.terms(stage)));
  multiply_scores(s, descriptor(k), descriptor(shared.q(stage)));
}
template <int scores>
__device__ inline void issue_dp(float (&dp)[scores], const SharedMemory& shared, const Ones& ones, u32 v, u32 stage,
                                u32 d_o_step) {
  if constexpr (!kDrops)
    multiply_terms(dp, ones.of, rows_descriptor(shared.terms(stage) + (kInClusters ? 0 : kTileQ * kTermBytes)));
  multiply_dp(dp, descriptor(v), descriptor(shared.d_o(d_o_step)));
}

// 64 rows of dK or dV, which two products may share (columns_at_once()).
template <int dims>
struct RoleSums {
  static constexpr int kFirst = columns_at_once(config, dims), kRest = dims - kFirst;
  float first[kFirst / 2], rest[kRest > 0 ? kRest / 2 : 1];

  __device__ void clear() {
#pragma unroll
    for (float& x : first) x = 0;
#pragma unroll
    for (float& x : rest) x = 0;
  }
  __device__ void pin() {
    pin_registers(first);
    if constexpr (kRest > 0) pin_registers(rest);
  }
  // If others have queries of the same keys. False: all is left to one of them.
  __device__ bool add_up(const PartSums& all, int number, int parts) {
    wait_for_launch_before();  // which has set sums to zero
    const int warp = number * cut_warps(config) + static_cast<int>(cluster_rank() * 8 + threadIdx.x / 32);
    float *of_first = all.of_warp(warp, cut_floats(config)), *of_rest = of_first + 16 * kFirst;
    PartSums::add(of_first, first);
    if constexpr (kRest > 0) PartSums::add(of_rest, rest);
    if (!all.is_last(warp, parts)) return false;
    PartSums::read(first, of_first);
    if constexpr (kRest > 0) PartSums::read(rest, of_rest);
    return true;
  }
  // What item it is of is found out once more: kept through the loop it would cost registers.
  template <Element output>
  __device__ void store(const KernelParams& params, const SharedMemory& shared, void* tensor, const Strides& strides,
                        float scale, const PartSums& all) {
    const BackwardItem item = item_of_block(params, shared);
    if (kCutsItems && params.parts > 1 && !add_up(all, item.number, params.parts)) return;
    const Int64 begin = key_begin(strides, item.seq);
    const int row = item.k_lo + static_cast<int>(first_key_of_block());
    store_rows<output, kFirst>(tensor, begin, strides.token, row, item.seq.k_len, scale, first);
    if constexpr (kRest > 0)
      store_rows<output, kRest>(tensor, begin + kFirst, strides.token, row, item.seq.k_len, scale, rest);
  }
};
// (Templates, so that a second product need not exist where there is none.)
template <int dims>
__device__ inline void issue_role_dv(RoleSums<dims>& dv, const Fragments& p, u32 d_o) {
  multiply_dv(dv.first, p, descriptor(d_o, kLayout.d_o.panel_bytes()), true);
  if constexpr (RoleSums<dims>::kRest > 0)
    multiply_dv_rest(dv.rest, p,
                     descriptor(d_o + RoleSums<dims>::kFirst / kLayout.d_o.panel_columns() * kLayout.d_o.panel_bytes(),
                                kLayout.d_o.panel_bytes()),
                     true);
}
template <int dims>
__device__ inline void issue_role_dk(RoleSums<dims>& dk, const Fragments& ds, u32 q) {
  multiply_dk(dk.first, ds, descriptor(q, kLayout.q.panel_bytes()), true);
  if constexpr (RoleSums<dims>::kRest > 0)
    multiply_dk_rest(dk.rest, ds,
                     descriptor(q + RoleSums<dims>::kFirst / kLayout.q.panel_columns() * kLayout.q.panel_bytes(),
                                kLayout.q.panel_bytes()),
                     true);
}

struct Role {
  const KernelParams& params;
  const SharedMemory& shared;
  BackwardItem& item;
  Turns turns;
  Ones ones;
  Scores s;  // or dP
  Fragments p;
  Kept kept;

  // Where this thread's part of P is, 16 bytes for every eight queries.
  __device__ u32 exchange(int i) const {
    return shared.exchange(0) + (i * kThreadsPerWarpgroup + threadIdx.x % kThreadsPerWarpgroup) * 16;
  }

  // The last reads of the step before are done: its product is, the one that was issued before these.
  __device__ void wait_for_scores(int number) {
    turns.end();
    wait_products<1>();
    if (number > 0) release(shared.q_empty((number - 1) % kStages));
    if (kInClusters && number > 0 && turns.warpgroup == 0) release(shared.d_o_empty(number - 1));
    wait_products<0>();
    pin_registers(s);
    pin_fragments(p);
    if (kInClusters && turns.warpgroup == 1) release(shared.d_o_empty(number));
  }
  __device__ void wait_for_step(int number) { wait_barrier(shared.q_full(number % kStages), number / kStages % 2); }
  __device__ void wait_for_d_o(int number) {
    if constexpr (kInClusters) wait_barrier(shared.d_o_full(number), number / kLayout.d_o_stages % 2);
  }

  // True: there were steps.
  template <int dims, class Step>
  __device__ bool visit(RoleSums<dims>& sums, u32 keys_full, const Step& step) {
    ones.set(kInClusters && turns.warpgroup == 1 ? 2 : 0);
    sums.clear();
    Steps at;
    turns.enter();
    const bool any = at.begin(params, item);
    if (any) {
      wait_barrier(keys_full, 0);
      int number = 0;
      do step(number++, at);
      while (at.advance(params, item));
      wait_products<0>();
      sums.pin();
    }
    turns.leave();
    return any;
  }
};

struct ScoreRole : Role {
  RoleSums<config.head_dim_v> dv;

  __device__ void step(int number, const Steps& at) {
    const u32 stage = number % kStages;
    wait_for_step(number);
    begin_products();
    issue_scores(s, shared, ones, shared.k(), stage);
    commit_products();
    // A score function leaves no registers for it.
    if constexpr (kDrops && !config.has_score) draw(kept, shared, item, first_key_of_block(), at);
    wait_for_scores(number);
    make_probabilities(s, p, params, item, first_key_of_block(), at, shared.terms(stage));
    if constexpr (kDrops && config.has_score) draw(kept, shared, item, first_key_of_block(), at);
    if constexpr (kDrops) drop<WeightRows::keys>(p, kept);
    if (number > 0) sync_named(kReadBarrier, 2 * kThreadsPerWarpgroup);
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i)
      store_shared(exchange(i), make_uint4(__float_as_uint(s[4 * i]), __float_as_uint(s[4 * i + 1]),
                                           __float_as_uint(s[4 * i + 2]), __float_as_uint(s[4 * i + 3])));
    arrive_named(kWrittenBarrier, 2 * kThreadsPerWarpgroup);
    wait_for_d_o(number);
    turns.begin();
    begin_products();
    issue_role_dv(dv, p, shared.d_o(number));
    commit_products();
  }
  __device__ void run(const PartSums& all) {
    const bool any =
        visit<config.head_dim_v>(dv, shared.k_full(), [&](int number, const Steps& at) { step(number, at); });
    if (any) sync_named(kReadBarrier, 2 * kThreadsPerWarpgroup);
    dv.store<config.output_dv>(params, shared, params.dv, params.dv_stride, kDropoutFactor, all);
  }
};

struct GradientRole : Role {
  RoleSums<config.head_dim_qk> dk;
  u32 first_tile;  // of the first head, in the workspace

  // In a cluster: dS to both blocks, with the number of its queries' tile.
  __device__ void hand_out_ds(int number, const Steps& at) {
    const u32 slot = number % kDsStages;
    wait_barrier(shared.ds_empty(slot), number / kDsStages % 2 ^ 1);
    store_ds(shared.ds(slot), p);
    fence_async_proxy();
    sync_named(kDsBarrier, kThreadsPerWarpgroup);
    if (threadIdx.x % kThreadsPerWarpgroup > 0) return;
    store_shared(shared.tile_number(slot), first_tile + at.head * params.tiles_q + at.tile);
    arrive(shared.ds_full(slot));
    arrive_expecting(shared.other_ds_full(slot), kLayout.ds.bytes());
    copy_to_block(cluster_rank() ^ 1, shared.other_ds(slot), shared.ds(slot), kLayout.ds.bytes(),
                  shared.other_ds_full(slot));
  }
  // There are no more. The other block is done with all of this one's, which may end then.
  __device__ void end_ds(int number) {
    for (int i = 0; i < kDsStages; ++i)
      wait_barrier(shared.ds_empty((number + i) % kDsStages), (number + i) / kDsStages % 2 ^ 1);
    if (threadIdx.x % kThreadsPerWarpgroup > 0) return;
    store_shared(shared.tile_number(number % kDsStages), kNoTile);
    arrive(shared.ds_full(number % kDsStages));
  }

  // In a cluster: queries whose D is marked as not finite.
  __device__ void spoil_marked(u32 terms) {
    if (load_shared_word(terms + 4) >> 16 == 0) return;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const u32 query = i / 4 * 8 + i % 2 + recompute(threadIdx.x) % 4 * 2;
      if (load_shared_word(terms + query * kTermBytes + 12) >> 16 != 0) s[i] = kInfinity - kInfinity;
    }
    pin_registers(s);
  }

  __device__ void step(int number, const Steps& at) {
    const u32 stage = number % kStages;
    wait_for_step(number);
    wait_for_d_o(number);
    begin_products();
    issue_dp(s, shared, ones, shared.v(), stage, number);
    commit_products();
    if constexpr (kDrops) draw(kept, shared, item, first_key_of_block(), at);
    wait_for_scores(number);
    if constexpr (kInClusters) spoil_marked(shared.terms(stage));
    sync_named(kWrittenBarrier, 2 * kThreadsPerWarpgroup);
    const ByWeight by_weight = {s, kept, shared.terms(stage)};
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const ByWeight::Four four = by_weight.four(i);
      const uint4 words = load_shared(exchange(i / 4));
      float p[4] = {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                    __uint_as_float(words.w)};
      four.multiply(0, p[0], p[1]);
      four.multiply(2, p[2], p[3]);
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i + e] = p[e];
    }
    arrive_named(kReadBarrier, 2 * kThreadsPerWarpgroup);
    convert<config.element>(p, s);
    if constexpr (kInClusters) hand_out_ds(number, at);
    turns.begin();
    begin_products();
    issue_role_dk(dk, p, shared.q(stage));
    commit_products();
  }
  __device__ void run(const PartSums& all) {
    int steps = 0;
    first_tile = static_cast<u32>(workspace_tile(params, item.seq, 0, 0));
    visit<config.head_dim_qk>(dk, shared.v_full(), [&](int number, const Steps& at) {
      step(number, at);
      steps = number + 1;
    });
    if constexpr (kInClusters) end_ds(steps);
    dk.store<config.output_dk>(params, shared, params.dk, params.dk_stride, config.scale * kDropoutFactor, all);
  }
};

// In a cluster, K of the other block, in the columns of dQ that this one makes.
__device__ inline void copy_other_keys(const TensorMaps& maps, const SharedMemory& shared, const BackwardItem& item) {
  const int panels = dq_panels(), first = static_cast<int>(cluster_rank()) * kDqPanels;
  const int key = item.k_lo + block_keys(config) - static_cast<int>(first_key_of_block());
  arrive_expecting(shared.other_k_full(), panels * kLayout.k.panel_bytes());
  for (int panel = 0; panel < panels; ++panel)
    copy_keys(shared.other_k() + panel * kLayout.k.panel_bytes(), maps.k, shared.other_k_full(), item.seq,
              (first + panel) * kLayout.k.panel_columns(), key);
}

// The producer of a block: a warp, of which the first lane copies.
struct RoleProducer : ProducerState {
  __device__ void copy_keys(u32 to, const PanelLayout& panels, const TensorMap& map, u32 full,
                            const BackwardItem& item) const {
    arrive_expecting(full, panels.bytes());
    copy_key_tile(to, panels, map, full, item);
  }
  __device__ void copy_queries(const Sequence& seq, const Steps& at) const {
    const u32 stage = step % kStages, full = shared.q_full(stage);
    wait_barrier(shared.q_empty(stage), step / kStages % 2 ^ 1);
    if (leads()) {
      arrive_expecting(full, kLayout.q.bytes() + row_terms_bytes(config) + (kInClusters ? 0 : kLayout.d_o.bytes()));
      copy_query_rows(shared.q(stage), kLayout.q, maps.q, maps.q_steps, full, seq, at.tile * kTileQ);
      copy_bytes(shared.terms(stage), terms_of(seq, at), row_terms_bytes(config), full);
    }
    if constexpr (kInClusters) {
      wait_barrier(shared.d_o_empty(step), step / kLayout.d_o_stages % 2 ^ 1);
      if (leads()) arrive_expecting(shared.d_o_full(step), kLayout.d_o.bytes());
    }
    if (leads())
      copy_query_rows(shared.d_o(step), kLayout.d_o, maps.o, maps.o_steps, kInClusters ? shared.d_o_full(step) : full,
                      seq, at.tile * kTileQ);
  }

  __device__ void run(BackwardItem& item) {
    Steps at;
    if (!at.begin(params, item)) return;
    if (leads()) {
      copy_keys(shared.k(), kLayout.k, maps.k, shared.k_full(), item);
      copy_keys(shared.v(), kLayout.v, maps.v, shared.v_full(), item);
      if constexpr (kInClusters) copy_other_keys(maps, shared, item);
    }
    do {
      copy_queries(at.sequence(item), at);
      ++step;
    } while (at.advance(params, item));
  }
};

// One block for each tile of keys of each KV head, or of each cluster.
__device__ inline void hopper_backward(const KernelParams& params, const TensorMaps& maps, const char* row_terms,
                                       float* dq_sums = nullptr, float* = nullptr, int* = nullptr, int* added = nullptr,
                                       int* dealt = nullptr, float* kv_sums = nullptr, int* parts_done = nullptr) {
  extern __shared__ __align__(1024) char memory[];
  const SharedMemory shared = {shared_address(memory), memory};
  if constexpr (deals_to_clusters(config)) take_item(shared, item_counter(params, dealt));
  BackwardItem item = item_of_block(params, shared);
  if (kPacked && item.k_lo >= item.seq.k_len) return;
  set_up(shared, params, false);
  const u32 warpgroup = uniform(threadIdx.x / kThreadsPerWarpgroup);
  if (warpgroup == kWarpgroups) {
    shrink_registers<backward_producer_registers(config)>();
    const u32 warp = uniform(threadIdx.x / 32 % 4);
    // Each returns, so that ptxas does not keep which warp this is.
    u32 first_step = 0;
    if (warp == 0) return RoleProducer{{params, maps, row_terms, shared}}.run(item);
    if (kOrdered && warp == 1) return wait_for_turns(params, shared, item, added, first_step);
    if (kOrdered && warp == 2) tell_steps(params, shared, item, added, first_step);
  } else if (kInClusters && warpgroup == 2) {
    shrink_registers<kDqRoleRegisters>();
    if constexpr (kInClusters) add_query_gradients(shared, dq_sums);
  } else {
    grow_registers<backward_consumer_registers(config)>();
    if (warpgroup == 0) ScoreRole{params, shared, item, {0}}.run({kv_sums, parts_done});
    else GradientRole{params, shared, item, {1}}.run({kv_sums, parts_done});
  }
}

}  // namespace flashjit
