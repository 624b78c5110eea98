// The main loop of backward for sm_90a. A block has a tile of keys, 64 for each of its warpgroups, and goes over the
// query tiles that see them. Scores are kept transposed, keys down and queries across: so P^T and dS^T are, as a thread
// has them, what the products for dV and dK take from registers. dS goes through shared memory to all warpgroups, which
// make a part of dQ each and add it to sums in memory.
//
// A step, of one warpgroup:
//   S = K Q^T and dP = V dO^T are issued, both relative to what the row terms say
//   P = exp(S); dV += P dO is issued, so that it runs while dS = P dP is made
//   dS goes to shared memory; dQ of the step before, whose dS all have written by now, and dK += dS Q are issued
//   dQ is added to memory while dK is computed
// Warpgroups take turns at issuing [dQ, dK, S, dP], so that one exponentiates beside the products of the other.
#pragma once

#include "matrix.gen.cuh"
#include "templates/hopper_backward/finish.cuh"
#include "templates/hopper_backward/output.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/producer.cuh"

namespace flashjit {

constexpr int kScores = kTileQ / 2, kQuerySteps = kTileQ / 16, kDqColumns = dq_columns(config);
constexpr float kExponentScale = config.scale * kLog2e;

__device__ inline u32 lane_id() { return threadIdx.x % 32; }

struct Consumer {
  const KernelParams& params;
  const SharedMemory& shared;
  const BackwardItem& item;
  float* dq_sums;
  u32 warpgroup;
  u32 ones[4];  // a fragment that adds up three rows of what it is multiplied with

  float dk[config.head_dim_qk / 2], dv[config.head_dim_v / 2];
  float s[kScores], dp[kScores], dq[kDqColumns / 2];
  u32 p[kQuerySteps][4], ds[kQuerySteps][4];

  __device__ void begin_turn() { sync_named(kTurnBarrier + warpgroup, 2 * kThreadsPerWarpgroup); }
  __device__ void end_turn() { arrive_named(kTurnBarrier + (warpgroup ^ 1), 2 * kThreadsPerWarpgroup); }
  __device__ static void release(u32 barrier) {
    if (lane_id() == 0) arrive(barrier);
  }

  __device__ void issue_scores(u32 stage) {
    multiply_terms(s, ones, rows_descriptor(shared.terms(stage)));
    multiply_scores(s, descriptor(shared.k() + warpgroup * kRowsPerWarpgroup * kPanelWidth),
                    descriptor(shared.q(stage)));
  }
  __device__ void issue_dp(u32 stage) {
    multiply_terms(dp, ones, rows_descriptor(shared.terms(stage) + kTileQ * kTermBytes));
    multiply_dp(dp, descriptor(shared.v() + warpgroup * kRowsPerWarpgroup * kPanelWidth),
                descriptor(shared.d_o(stage)));
  }
  __device__ void issue_dv(u32 stage, bool more) {
    multiply_dv(dv, p, descriptor(shared.d_o(stage), kLayout.d_o.panel_bytes()), more);
  }
  __device__ void issue_dk(u32 stage, bool more) {
    multiply_dk(dk, ds, descriptor(shared.q(stage), kLayout.q.panel_bytes()), more);
  }
  __device__ void issue_dq(float (&sums)[kDqColumns / 2], u32 stage) {
    constexpr bool kColumns = splits_dq_columns(config);
    const u32 rows = kColumns ? 0 : warpgroup * kRowsPerWarpgroup * kPanelWidth;
    const u32 columns = kColumns ? warpgroup * kDqColumns / kLayout.k.panel_columns() * kLayout.k.panel_bytes() : 0;
    multiply_dq(sums, descriptor(shared.ds(stage) + rows), descriptor(shared.k() + columns, kLayout.k.panel_bytes()));
  }

  // P, transposed: of this thread's two keys and pairs of queries.
  __device__ void exponentiate() {
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_approx(s[i] * kExponentScale);
#pragma unroll
    for (int i = 0; i < kScores; i += 2) p[i / 8][i % 8 / 2] = pack<config.element>(s[i], s[i + 1]);
  }

  // Where the mask cuts: -infinity, times the scale, for what a query does not see.
  __device__ void hide(int tile, int head) {
    const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
    const int key = item.k_lo + warpgroup * kRowsPerWarpgroup + thread / 32 * 16 + thread % 32 / 4;
    const int query = tile * kTileQ + thread % 4 * 2;
    Sequence seq = item.seq;
    seq.h = head;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int k = key + i % 4 / 2 * 8, q = query + i / 4 * 8 + i % 2;
      if (k >= seq.k_len || !Variant::visible(params, seq, q, k)) s[i] = config.scale > 0 ? -kInfinity : kInfinity;
    }
  }

  __device__ void make_ds() {
#pragma unroll
    for (int i = 0; i < kScores; i += 2)
      ds[i / 8][i % 8 / 2] = pack<config.element>(s[i] * dp[i], s[i + 1] * dp[i + 1]);
  }
  // dS, not transposed: a row for each query. Of a panel of 64 keys a warp has 16, two chunks of 16 bytes.
  __device__ void store_ds(u32 stage) {
    const u32 lane = lane_id(), warp = threadIdx.x / 32 % 4;
    const u32 row = lane / 16 * 8 + lane % 8, chunk = (warp * 2 + lane / 8 % 2) ^ lane % 8;
    const u32 to = shared.ds(stage) + warpgroup * kLayout.ds.panel_bytes() + row * kPanelWidth + chunk * 16;
#pragma unroll
    for (int i = 0; i < kQuerySteps; ++i) store_matrices_transposed(to + i * 16 * kPanelWidth, ds[i]);
    fence_async_proxy();
    __syncwarp();
    release(shared.ds_full(stage));
  }

  // Adds this warpgroup's part of dQ to memory. Columns behind the head dim are left out.
  __device__ void add_dq(const float (&sums)[kDqColumns / 2], const Steps& at) {
    const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
    float* to = dq_sums + workspace_tile(params, item.seq, at.head, at.tile) * dq_sum_floats(config) +
                warpgroup * (kRowsPerWarpgroup * kDqColumns) + thread * 4;
    constexpr bool kAll = !splits_dq_columns(config) || kDqColumns * kWarpgroups == config.head_dim_qk;
#pragma unroll
    for (int j = 0; j < kDqColumns / 8; ++j) {
      if (kAll || warpgroup * kDqColumns + j * 8 < config.head_dim_qk)
        add_to_global(to + j * 4 * kThreadsPerWarpgroup, sums[4 * j], sums[4 * j + 1], sums[4 * j + 2],
                      sums[4 * j + 3]);
    }
  }

  __device__ void step(int number, const Steps& at, const Steps& before) {
    const u32 stage = number % kStages, parity = number / kStages % 2;
    const u32 ds_stage = number % 2, ds_parity = number / 2 % 2;
    wait_barrier(shared.q_full(stage), parity);
    wait_products<0>();
    pin_fragments(p);
    pin_fragments(ds);
    begin_products();
    issue_scores(stage);
    commit_products();
    issue_dp(stage);
    commit_products();
    end_turn();
    wait_products<1>();
    pin_registers(s);
    if (number > 0) release(shared.q_empty((number - 1) % kStages));
    if (at.tile < item.full_first || at.tile > item.full_last) hide(at.tile, at.head);
    exponentiate();
    pin_registers(s);
    begin_products();
    issue_dv(stage, true);
    commit_products();
    wait_products<1>();
    pin_registers(dp);
    make_ds();
    wait_barrier(shared.ds_empty(ds_stage), ds_parity ^ 1);
    store_ds(ds_stage);
    begin_turn();
    if (number > 0) wait_barrier(shared.ds_full(ds_stage ^ 1), (number - 1) / 2 % 2);
    begin_products();
    issue_dq(dq, ds_stage ^ 1);
    commit_products();
    issue_dk(stage, true);
    commit_products();
    wait_products<1>();
    pin_registers(dq);
    if (number > 0) {
      release(shared.ds_empty(ds_stage ^ 1));
      add_dq(dq, before);
    }
  }

  // dQ of the last step.
  __device__ void add_last_dq(int number, const Steps& last) {
    float sums[kDqColumns / 2];
    const u32 ds_stage = number % 2;
    wait_barrier(shared.ds_full(ds_stage), number / 2 % 2);
    begin_products();
    issue_dq(sums, ds_stage);
    commit_products();
    wait_products<0>();
    pin_registers(sums);
    add_dq(sums, last);
  }

  __device__ void run() {
    const u32 lane = lane_id() % 4, one = pack<config.element>(1.0f, 0.0f);
    ones[0] = ones[1] = lane == 0 ? one | one << 16 : lane == 1 ? one : 0;
    ones[2] = ones[3] = 0;
#pragma unroll
    for (float& x : dk) x = 0;
#pragma unroll
    for (float& x : dv) x = 0;
    const int count = item.tiles() * kGroup;
    Steps at = first_step(item), before = at;
    if (warpgroup == 1) begin_turn();
    if (count > 0) {
      wait_barrier(shared.k_full(), 0);
      wait_barrier(shared.v_full(), 0);
#pragma unroll 1
      for (int number = 0; number < count; ++number) {
        step(number, at, before);
        before = at;
        at.advance(item);
      }
      wait_products<0>();
      pin_registers(dk);
      pin_registers(dv);
    }
    if (warpgroup == 0) end_turn();  // the other began one turn more
    const int key = item.k_lo + warpgroup * kRowsPerWarpgroup;
    store_key_rows<config.head_dim_qk>(params.dk, params.dk_stride, item.seq, key, config.scale, dk);
    store_key_rows<config.head_dim_v>(params.dv, params.dv_stride, item.seq, key, 1.0f, dv);
    // Only now: ptxas serialises all products if these sums are live beside dK and dV.
    if (count > 0) add_last_dq(count - 1, before);
  }
};

// One block for each tile of keys of each KV head and batch index.
__device__ inline void hopper_backward(const KernelParams& params, const TensorMaps& maps, const char* row_terms,
                                       float* dq_sums) {
  extern __shared__ __align__(1024) char memory[];
  const SharedMemory shared = {shared_address(memory)};
  set_up(shared);
  const BackwardItem item = backward_item(params, blockIdx.x);
  const u32 warpgroup = uniform(threadIdx.x / kThreadsPerWarpgroup);
  if (warpgroup == kWarpgroups) {
    shrink_registers<backward_producer_registers(config)>();
    if (threadIdx.x == kWarpgroups * kThreadsPerWarpgroup) produce(params, maps, row_terms, shared, item);
  } else {
    grow_registers<backward_consumer_registers(config)>();
    Consumer{params, shared, item, dq_sums, warpgroup}.run();
  }
}

}  // namespace flashjit
