// The first and the last launch of backward: what the others need of each query, and the sums of dQ.
#pragma once

#include "templates/backward/layout.h"
#include "templates/sequence.cuh"

namespace flashjit {

// Facts are [head, query], queries of all sequences one after the other.
__device__ inline Int64 facts_row(const KernelParams& p, const Sequence& seq, int head, int q) {
  const Int64 tokens = kRows == Rows::packed ? p.offsets_q[p.batch] : static_cast<Int64>(p.batch) * p.q_len;
  return head * tokens + (kRows == Rows::packed ? seq.q_token : static_cast<Int64>(seq.b) * p.q_len) + q;
}

// Of what the spec calls lse.
constexpr float kNaturalLse = config.lse == Lse::log2 ? kLn2 : 1.0f;

__device__ inline float number(u16 bits) {
  return config.element == Element::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
}

// A warp calls visit(sequence, query) for its rows of the block's.
template <class Visit>
__device__ inline void for_each_row(const KernelParams& p, const Visit& visit) {
  const int tiles = (p.q_len + kPrepareRows - 1) / kPrepareRows, head = blockIdx.x / tiles;
  const Sequence seq = sequence_of(p, head / config.heads_q, head % config.heads_q);
  const int first = blockIdx.x % tiles * kPrepareRows, end = min(first + kPrepareRows, seq.q_len);
  for (int q = first + threadIdx.x / 32; q < end; q += kPrepareThreads / 32) visit(seq, q);
}

// With s the logits and P = exp(s - lse), lse = log(sum of exp(s)):
//   dP = dO V^T,  ds = P (dP - delta),  delta = sum over columns of dO O - dlse
// since a row of P sums up to 1 with the sink, whose V is 0. A row that sees nothing has an lse of -infinity: of
// +infinity its P is 0.
__device__ inline void backward_prepare(const KernelParams& p, RowFacts* facts, float* dq_sums = nullptr) {
  for_each_row(p, [&](const Sequence& seq, int q) {
    const u32 lane = threadIdx.x % 32;
    const auto* o = static_cast<const Bits<config.element>*>(p.o) + query_row(p.o_stride, seq, seq.h, q);
    const auto* d_o = static_cast<const Bits<config.element>*>(p.d_o) + query_row(p.d_o_stride, seq, seq.h, q);
    float delta = 0;
#pragma unroll
    for (int column = lane * 2; column < config.head_dim_v; column += 64) {
#pragma unroll
      for (int i = 0; i < 2; ++i) delta += number(o[column + i]) * number(d_o[column + i]);
    }
    for (int step = 16; step > 0; step /= 2) delta += __shfl_xor_sync(0xffffffff, delta, step);
    const Int64 row = facts_row(p, seq, seq.h, q);
    if constexpr (config.dq == DqSums::atomics) {
      for (int column = lane; column < config.head_dim_qk; column += 32) dq_sums[row * config.head_dim_qk + column] = 0;
    }
    if (lane != 0) return;
    const Int64 result = result_row(p, seq, q);
    if constexpr (config.dlse) delta -= p.d_lse[result] / kNaturalLse;
    const float lse = p.lse[result];
    facts[row] = {lse == -kInfinity ? kInfinity : lse * (kNaturalLse * kLog2e), delta};
  });
}

// dQ from its sums.
__device__ inline void backward_finish(const KernelParams& p, const float* dq_sums) {
  for_each_row(p, [&](const Sequence& seq, int q) {
    const float* sums = dq_sums + facts_row(p, seq, seq.h, q) * config.head_dim_qk;
    const Int64 at = query_row(p.dq_stride, seq, seq.h, q);
    for (int column = threadIdx.x % 32 * 2; column < config.head_dim_qk; column += 64) {
      const float2 pair = *reinterpret_cast<const float2*>(sums + column);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float value = (i ? pair.y : pair.x) * config.scale;
        if constexpr (config.output == Element::f32) static_cast<float*>(p.dq)[at + column + i] = value;
        else static_cast<u16*>(p.dq)[at + column + i] = static_cast<u16>(pack<config.output>(value, 0.0f));
      }
    }
  });
}

}  // namespace flashjit
