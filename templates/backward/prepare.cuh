// The first launch of backward: what the others need of each query.
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

// With s the logits and P = exp(s - lse), lse = log(sum of exp(s)):
//   dP = dO V^T,  ds = P (dP - delta),  delta = sum over columns of dO O - dlse
// since a row of P sums up to 1 with the sink, whose V is 0. A row that sees nothing has an lse of -infinity: of
// +infinity its P is 0.
__device__ inline void backward_prepare(const KernelParams& p, RowFacts* facts) {
  const int tiles = (p.q_len + kPrepareRows - 1) / kPrepareRows;
  const int head = blockIdx.x / tiles;
  const Sequence seq = sequence_of(p, head / config.heads_q, head % config.heads_q);
  const int first = blockIdx.x % tiles * kPrepareRows, lane = threadIdx.x % 32;
  const auto* o = static_cast<const Bits<config.element>*>(p.o) + query_row(p.o_stride, seq, seq.h, 0);
  const auto* d_o = static_cast<const Bits<config.element>*>(p.d_o) + query_row(p.d_o_stride, seq, seq.h, 0);
#pragma unroll 4
  for (int row = threadIdx.x / 32; row < kPrepareRows; row += kPrepareThreads / 32) {
    const int q = first + row;
    if (q >= seq.q_len) break;
    float delta = 0;
#pragma unroll
    for (int column = lane * 2; column < config.head_dim_v; column += 64) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        delta += number(o[q * p.o_stride.token + column + i]) * number(d_o[q * p.d_o_stride.token + column + i]);
    }
    for (int step = 16; step > 0; step /= 2) delta += __shfl_xor_sync(0xffffffff, delta, step);
    if (lane != 0) continue;
    const Int64 result = result_row(p, seq, q);
    if constexpr (config.dlse) delta -= p.d_lse[result] / kNaturalLse;
    const float lse = p.lse[result];
    facts[facts_row(p, seq, seq.h, q)] = {lse == -kInfinity ? kInfinity : lse * (kNaturalLse * kLog2e), delta};
  }
}

}  // namespace flashjit
