// The main loop where dK and dV do not fit into the registers of one warpgroup. A block has 64 keys. The first warpgroup
// computes scores and dV, the second dP and dK; P goes from the one to the other in fp32: a key may have no P that fp16 can
// hold. dQ is made apart.
#pragma once

#include "templates/hopper_backward/output.cuh"
#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

struct Role {
  const KernelParams& params;
  const SharedMemory& shared;
  BackwardItem& item;
  Turns turns;
  Ones ones;
  Scores s;  // or dP
  Fragments p;

  // Where this thread's part of P is, 16 bytes for every eight queries.
  __device__ u32 exchange(int number, int i) const {
    return shared.exchange(number % kExchanges) + (i * kThreadsPerWarpgroup + threadIdx.x % kThreadsPerWarpgroup) * 16;
  }

  // The last reads of the step before are done: its product is, the one that was issued before these.
  __device__ void wait_for_scores(int number) {
    turns.end();
    wait_products<1>();
    if (number > 0) release(shared.q_empty((number - 1) % kStages));
    wait_products<0>();
    pin_registers(s);
    pin_fragments(p);
  }
  __device__ void wait_for_step(int number) { wait_barrier(shared.q_full(number % kStages), number / kStages % 2); }

  template <int dims, class Step>
  __device__ void visit(float (&sums)[dims / 2], u32 keys_full, const Step& step) {
    ones.set();
#pragma unroll
    for (float& x : sums) x = 0;
    Steps at;
    turns.enter();
    if (at.begin(params, item)) {
      wait_barrier(keys_full, 0);
      int number = 0;
      do step(number++, at);
      while (at.advance(params, item));
      wait_products<0>();
      pin_registers(sums);
    }
    turns.leave();
  }
};

struct ScoreRole : Role {
  float dv[config.head_dim_v / 2];

  __device__ void step(int number, const Steps& at) {
    const u32 stage = number % kStages;
    wait_for_step(number);
    begin_products();
    issue_scores(s, shared, ones, 0, stage);
    commit_products();
    wait_for_scores(number);
    make_probabilities(s, p, params, item, 0, at, shared.terms(stage));
    wait_barrier(shared.exchange_empty(number % kExchanges), number / kExchanges % 2 ^ 1);
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i)
      store_shared(exchange(number, i), make_uint4(__float_as_uint(s[4 * i]), __float_as_uint(s[4 * i + 1]),
                                                   __float_as_uint(s[4 * i + 2]), __float_as_uint(s[4 * i + 3])));
    __syncwarp();
    release(shared.exchange_full(number % kExchanges));
    turns.begin();
    begin_products();
    multiply_dv(dv, p, descriptor(shared.d_o(stage), kLayout.d_o.panel_bytes()), true);
    commit_products();
  }
  __device__ void run() {
    visit<config.head_dim_v>(dv, shared.k_full(), [&](int number, const Steps& at) { step(number, at); });
    store_rows<config.head_dim_v>(params.dv, key_begin(params.dv_stride, item.seq), params.dv_stride.token, item.k_lo,
                                  item.seq.k_len, 1.0f, dv);
  }
};

struct GradientRole : Role {
  float dk[config.head_dim_qk / 2];

  __device__ void step(int number) {
    const u32 stage = number % kStages;
    wait_for_step(number);
    begin_products();
    issue_dp(s, shared, ones, 0, stage);
    commit_products();
    wait_for_scores(number);
    wait_barrier(shared.exchange_full(number % kExchanges), number / kExchanges % 2);
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
      const uint4 words = load_shared(exchange(number, i));
      s[4 * i] *= __uint_as_float(words.x);
      s[4 * i + 1] *= __uint_as_float(words.y);
      s[4 * i + 2] *= __uint_as_float(words.z);
      s[4 * i + 3] *= __uint_as_float(words.w);
    }
    __syncwarp();
    release(shared.exchange_empty(number % kExchanges));
    convert<config.element>(p, s);
    turns.begin();
    begin_products();
    multiply_dk(dk, p, descriptor(shared.q(stage), kLayout.q.panel_bytes()), true);
    commit_products();
  }
  __device__ void run() {
    visit<config.head_dim_qk>(dk, shared.v_full(), [&](int number, const Steps&) { step(number); });
    store_rows<config.head_dim_qk>(params.dk, key_begin(params.dk_stride, item.seq), params.dk_stride.token, item.k_lo,
                                   item.seq.k_len, config.scale, dk);
  }
};

}  // namespace flashjit
