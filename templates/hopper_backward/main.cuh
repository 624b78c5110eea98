// The main loop of backward for sm_90a. A block has a tile of keys, 64 for each of its warpgroups, and goes over the
// query tiles that see them. Scores are kept transposed, keys down and queries across: so P^T and dS^T are, as a thread
// has them, what the products for dV and dK take from registers. dS goes through shared memory to all warpgroups, which
// make a part of dQ each and add it to sums in memory.
#pragma once

#include "templates/hopper_backward/finish.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/producer.cuh"
#include "templates/hopper_backward/queries.cuh"
#include "templates/hopper_backward/roles.cuh"
#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

constexpr int kDqColumns = dq_columns(config);
using QueryGradients = float[kDqColumns / 2];

// (A template, as are the functions below: products that a kernel does not have are then not asked for.)
template <DqSums dq_sums_by>
struct Consumer {
  static constexpr bool kDqApart = dq_sums_by == DqSums::launch;

  const KernelParams& params;
  const SharedMemory& shared;
  BackwardItem& item;
  float* dq_sums;
  Turns turns;
  u32 keys;  // of the block's, the first of this warpgroup
  Ones ones;

  float dk[config.head_dim_qk / 2], dv[config.head_dim_v / 2];
  Scores s, dp;
  QueryGradients dq;
  Fragments p, ds;

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
    multiply_dq(sums, descriptor(shared.exchange(exchange) + rows),
                descriptor(shared.k() + columns, kLayout.k.panel_bytes()));
  }

  // dS, not transposed: a row for each query. Of a panel of 64 keys a warp has 16, two chunks of 16 bytes.
  __device__ void store_ds(u32 exchange) {
    const u32 lane = lane_id(), warp = threadIdx.x / 32 % 4;
    const u32 row = lane / 16 * 8 + lane % 8, chunk = (warp * 2 + lane / 8 % 2) ^ lane % 8;
    const u32 to =
        shared.exchange(exchange) + turns.warpgroup * kLayout.ds.panel_bytes() + row * kPanelWidth + chunk * 16;
#pragma unroll
    for (int i = 0; i < kQuerySteps; ++i) store_matrices_transposed(to + i * 16 * kPanelWidth, ds[i]);
    fence_async_proxy();
    __syncwarp();
    release(shared.exchange_full(exchange));
  }

  // Adds this warpgroup's part of dQ to memory. Columns behind the head dim are left out.
  __device__ void add_dq(const QueryGradients& sums, const Steps& at) {
    const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
    float* to = dq_sums + workspace_tile(params, item.seq, at.head, at.tile) * dq_sum_floats(config) +
                turns.warpgroup * (kRowsPerWarpgroup * kDqColumns) + thread * 4;
    constexpr bool kAll = !splits_dq_columns(config) || kDqColumns * kWarpgroups == config.head_dim_qk;
#pragma unroll
    for (int j = 0; j < kDqColumns / 8; ++j) {
      if (kAll || turns.warpgroup * kDqColumns + j * 8 < config.head_dim_qk)
        add_to_global(to + j * 4 * kThreadsPerWarpgroup, sums[4 * j], sums[4 * j + 1], sums[4 * j + 2],
                      sums[4 * j + 3]);
    }
  }

  // S and dP are issued, both relative to what the row terms say. P = exp(S); dV += P dO is issued, so that it runs while
  // dS = P dP is made.
  __device__ void make_score_gradients(int number, const Steps& at) {
    const u32 stage = number % kStages;
    wait_barrier(shared.q_full(stage), number / kStages % 2);
    wait_products<0>();
    pin_fragments(p);
    pin_fragments(ds);
    begin_products();
    issue_scores(s, shared, ones, keys, stage);
    commit_products();
    issue_dp(dp, shared, ones, keys, stage);
    commit_products();
    turns.end();
    wait_products<1>();
    pin_registers(s);
    if (number > 0) release(shared.q_empty((number - 1) % kStages));
    make_probabilities(s, p, params, item, keys, at, shared.terms(stage));
    pin_registers(s);
    begin_products();
    issue_dv(stage);
    commit_products();
    wait_products<1>();
    pin_registers(dp);
    make_ds(ds, s, dp);
  }

  // dS goes to shared memory; then dQ of the step before, whose dS all have written by now, and dK += dS Q are issued, and
  // dQ is added to memory while dK is computed.
  __device__ void step(int number, const Steps& at, const Steps& before) {
    const u32 exchange = number % 2;
    make_score_gradients(number, at);
    wait_barrier(shared.exchange_empty(exchange), number / 2 % 2 ^ 1);
    store_ds(exchange);
    turns.begin();
    if (number > 0) wait_barrier(shared.exchange_full(exchange ^ 1), (number - 1) / 2 % 2);
    begin_products();
    issue_dq(dq, exchange ^ 1);
    commit_products();
    issue_dk(number % kStages);
    commit_products();
    wait_products<1>();
    pin_registers(dq);
    if (number > 0) {
      release(shared.exchange_empty(exchange ^ 1));
      add_dq(dq, before);
    }
  }

  __device__ void step_without_dq(int number, const Steps& at) {
    make_score_gradients(number, at);
    turns.begin();
    begin_products();
    issue_dk(number % kStages);
    commit_products();
  }

  // dQ of the last step.
  __device__ void add_last_dq(int number, const Steps& last) {
    QueryGradients sums;
    wait_barrier(shared.exchange_full(number % 2), number / 2 % 2);
    begin_products();
    issue_dq(sums, number % 2);
    commit_products();
    wait_products<0>();
    pin_registers(sums);
    add_dq(sums, last);
  }

  __device__ void run() {
    ones.set();
#pragma unroll
    for (float& x : dk) x = 0;
#pragma unroll
    for (float& x : dv) x = 0;
    Steps at, before = {};
    int number = -1;
    turns.enter();
    if (at.begin(params, item)) {
      wait_barrier(shared.k_full(), 0);
      wait_barrier(shared.v_full(), 0);
      do {
        if constexpr (kDqApart) step_without_dq(++number, at);
        else step(++number, at, before);
        before = at;
      } while (at.advance(params, item));
      wait_products<0>();
      pin_registers(dk);
      pin_registers(dv);
    }
    turns.leave();
    const int key = item.k_lo + static_cast<int>(keys);
    store_rows<config.head_dim_qk>(params.dk, key_begin(params.dk_stride, item.seq), params.dk_stride.token, key,
                                   item.seq.k_len, config.scale, dk);
    store_rows<config.head_dim_v>(params.dv, key_begin(params.dv_stride, item.seq), params.dv_stride.token, key,
                                  item.seq.k_len, 1.0f, dv);
    // Only now: ptxas serialises all products if these sums are live beside dK and dV.
    if constexpr (!kDqApart) {
      if (number >= 0) add_last_dq(number, before);
    }
  }
};

// One block for each tile of keys of each KV head and batch index.
template <DqSums dq_sums_by = config.dq>
__device__ inline void hopper_backward(const KernelParams& params, const TensorMaps& maps, const char* row_terms,
                                       float* dq_sums = nullptr) {
  extern __shared__ __align__(1024) char memory[];
  const SharedMemory shared = {shared_address(memory)};
  set_up(shared);
  BackwardItem item = backward_item(params, blockIdx.x);
  const u32 warpgroup = uniform(threadIdx.x / kThreadsPerWarpgroup);
  if (warpgroup == kWarpgroups) {
    shrink_registers<backward_producer_registers(config)>();
    if (threadIdx.x == kWarpgroups * kThreadsPerWarpgroup) produce(params, maps, row_terms, shared, item);
  } else {
    grow_registers<backward_consumer_registers(config)>();
    if constexpr (kHasRoles && dq_sums_by == DqSums::launch) {
      if (warpgroup == 0) ScoreRole{params, shared, item, {warpgroup}}.run();
      else GradientRole{params, shared, item, {warpgroup}}.run();
    } else {
      Consumer<dq_sums_by>{params, shared, item, dq_sums, {warpgroup}, warpgroup * kRowsPerWarpgroup}.run();
    }
  }
}

}  // namespace flashjit
