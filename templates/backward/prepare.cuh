// The first and the last launch of backward: what the others need of each query, and the sums of dQ.
#pragma once

#include "templates/backward/layout.h"
#include "templates/backward/parameters.cuh"
#include "templates/backward/parts.cuh"
#include "templates/dropout.cuh"
#include "templates/row_algebra.cuh"
#include "templates/sequence.cuh"
#include "templates/tile_copy.cuh"

namespace flashjit {

// Facts are [head, query]; so is what each query takes from the gradient of its sink.
__device__ inline Int64 facts_row(const KernelParams& p, const Sequence& seq, int head, int q) {
  return head * all_queries(p) + queries_before(p, seq) + q;
}

// Where the sums of 16 queries begin.
__device__ inline Int64 first_dq_sum(const KernelParams& p, const Sequence& seq, int head, int q) {
  const Int64 tiles = all_queries(p) / 16 + p.batch, before = queries_before(p, seq) / 16 + seq.b;
  return (head * tiles + before + q / 16) * dq_tile_floats(config);
}

__device__ inline float number(u16 bits) {
  return config.element == Element::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
}

// The queries of a block, some of those of a head.
struct QueryRows {
  Sequence seq;
  int first, end;
};
__device__ inline QueryRows rows_of_block(const KernelParams& p) {
  const int tiles = (p.q_len + kPrepareRows - 1) / kPrepareRows, head = blockIdx.x / tiles;
  const Sequence seq = sequence_of(p, head / config.heads_q, head % config.heads_q);
  const int first = blockIdx.x % tiles * kPrepareRows;
  return {seq, first, min(first + kPrepareRows, seq.q_len)};
}

// As many elements as inputs are aligned to.
constexpr int kPieceColumns = config.copy_bytes / 2;
struct alignas(config.copy_bytes) Piece {
  u16 bits[kPieceColumns];
};
// A row of O, a piece for each lane, has so many lanes.
constexpr int row_lanes() {
  int lanes = 1;
  while (lanes < 32 && lanes * kPieceColumns < config.head_dim_v) lanes *= 2;
  return lanes;
}
constexpr int kRowLanes = row_lanes();

// With s the logits and P = exp(s - lse), lse = log(sum of exp(s)):
//   dP = dO V^T,  ds = P (dP - delta),  delta = sum over columns of dO O - dlse
// since a row of P sums up to 1 with the sink, whose V is 0. Dropout leaves delta as it is, and multiplies what it keeps of
// dP by a factor. Gradients get this factor when they are stored, so that ds is over it, and so is delta. A row that sees
// nothing has an lse of -infinity; +infinity makes its P 0.
__device__ inline void backward_prepare(const KernelParams& p, RowFacts* facts, float* dq_sums = nullptr,
                                        float* sink_rows = nullptr, float* kv_sums = nullptr,
                                        int* parts_done = nullptr) {
  if (config.gradients > 0 && (p.q_len == 0 || p.batch == 0)) return;
  const QueryRows rows = rows_of_block(p);
  const Sequence& seq = rows.seq;
  if constexpr (config.sync_backward.dq == DqSums::atomics) {
    auto* zeros = reinterpret_cast<float4*>(dq_sums + first_dq_sum(p, seq, seq.h, rows.first));
    const int count = (rows.end - rows.first + 15) / 16 * dq_tile_floats(config) / 4;
    for (int i = threadIdx.x; i < count; i += kPrepareThreads) zeros[i] = {0, 0, 0, 0};
  }
  const int lane = threadIdx.x % kRowLanes;
  const auto* o = static_cast<const Bits<config.element>*>(p.o) + query_row(p.o_stride, seq, seq.h, 0);
  const auto* d_o = static_cast<const Bits<config.element>*>(p.d_o) + query_row(p.d_o_stride, seq, seq.h, 0);
  for (int first = rows.first; first < rows.end; first += kPrepareThreads / kRowLanes) {
    const int q = first + threadIdx.x / kRowLanes;
    float delta = 0;
    if (q < rows.end) {
#pragma unroll
      for (int column = lane * kPieceColumns; column < config.head_dim_v; column += kRowLanes * kPieceColumns) {
        const Piece a = *reinterpret_cast<const Piece*>(o + q * p.o_stride.token + column),
                    b = *reinterpret_cast<const Piece*>(d_o + q * p.d_o_stride.token + column);
#pragma unroll
        for (int i = 0; i < kPieceColumns; ++i) delta += number(a.bits[i]) * number(b.bits[i]);
      }
    }
#pragma unroll
    for (int step = kRowLanes / 2; step > 0; step /= 2) delta += __shfl_xor_sync(0xffffffff, delta, step);
    if (q >= rows.end) continue;
    const Int64 row = facts_row(p, seq, seq.h, q);
    if (lane != 0) continue;
    const Int64 result = result_row(p, seq, q);
    if constexpr (config.dlse) delta -= p.d_lse[result] / kNaturalLse;
    const float lse = p.lse[result];
    if constexpr (config.sink_gradient) sink_rows[row] = sink_share(p, seq, lse * kNaturalLse, delta);
    facts[row] = {lse == -kInfinity ? kInfinity : lse * (kNaturalLse * kLog2e), delta * kKeptShare};
  }
  if constexpr (shares_keys(config))
    PartSums{kv_sums, parts_done}.clear<kPrepareThreads>(p, config.sync_backward.warps, key_floats(config));
}

// dQ from its sums, in chunks of eight columns.
__device__ inline void backward_finish(const KernelParams& p, const float* dq_sums) {
  const QueryRows rows = rows_of_block(p);
  constexpr int kChunks = config.head_dim_qk / 8;
  constexpr float kScale = config.scale * kDropoutFactor;
  const Int64 first = query_row(p.dq_stride, rows.seq, rows.seq.h, rows.first);
  for (int i = threadIdx.x; i < (rows.end - rows.first) * kChunks; i += kPrepareThreads) {
    const int q = rows.first + i / kChunks, row = q % 16;
    const float* tile = dq_sums + first_dq_sum(p, rows.seq, rows.seq.h, q) + i % kChunks * kTileSums;
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = tile[offset_of_sum(row % 8 * 4 + j / 2, row / 8 * 2 + j % 2)];
    const Int64 at = first + i / kChunks * p.dq_stride.token + i % kChunks * 8;
    if constexpr (config.output_dq == Element::f32) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float* to = static_cast<float*>(p.dq) + at + j;
        *to = config.accumulate ? *to + values[j] * kScale : values[j] * kScale;
      }
    } else {
      u32 words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = pack<config.output_dq>(values[2 * j] * kScale, values[2 * j + 1] * kScale);
      store_chunk<config.copy_bytes>(static_cast<Bits<config.output_dq>*>(p.dq) + at,
                                     {words[0], words[1], words[2], words[3]});
    }
  }
}

}  // namespace flashjit
