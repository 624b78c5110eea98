// The first and the last launch of backward: they make the facts of each query, and dQ from its sums.
#pragma once

#include "templates/backward/layout.h"
#include "templates/backward/parameters.cuh"
#include "templates/backward/parts.cuh"
#include "templates/dropout.cuh"
#include "templates/row_algebra.cuh"
#include "templates/sequence.cuh"
#include "templates/tile_copy.cuh"

namespace flashjit {

// Facts are [head, query], as are the shares of queries in the gradient of their sinks.
__device__ inline Int64 facts_row(const KernelParams& p, const Sequence& seq, int head, int q) {
  return head * all_queries(p) + queries_before(p, seq) + q;
}

// Rows of K, of all its sequences, are numbered by 32 bits: no GPU has memory for 2^32 of them, and of V and the
// gradients. (Divisions of 64 bits are calls, around which registers are spilled.)
__device__ inline u32 all_key_rows(const KernelParams& p) { return static_cast<u32>(p.pages) * p.key_rows; }
// Returns the sums of a row and a KV head.
__device__ inline float* listed_sums(float* key_sums, u32 row, int hk) {
  return key_sums + (static_cast<Int64>(row) * config.heads_kv + hk) * listed_row_floats(config);
}

// The rows of K, and the KV head, of a block in a launch over all of them.
struct KeyRowsOfBlock {
  u32 first;
  int count, hk;
};
template <int rows>
__device__ inline KeyRowsOfBlock key_rows_of_block(const KernelParams& p) {
  const u32 first = blockIdx.x / config.heads_kv * rows, left = all_key_rows(p) - first;
  return {first, static_cast<int>(min(left, static_cast<u32>(rows))), static_cast<int>(blockIdx.x % config.heads_kv)};
}

// Returns where such a row lies in dK or dV.
__device__ inline Int64 key_row(const Strides& s, const KernelParams& p, u32 row, int hk) {
  const u32 rows = p.key_rows;
  return row / rows * s.batch + hk * s.head + row % rows * s.token;
}

// Returns where the sums of 16 queries begin.
__device__ inline Int64 first_dq_sum(const KernelParams& p, const Sequence& seq, int head, int q) {
  const Int64 tiles = all_queries(p) / 16 + p.batch, before = queries_before(p, seq) / 16 + seq.b;
  return (head * tiles + before + q / 16) * dq_tile_floats(config);
}

__device__ inline float number(u16 bits) {
  return config.element == Element::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
}

// The queries of a block: some of those of a head.
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

// A piece has as many elements as inputs are aligned to.
constexpr int kPieceColumns = config.copy_bytes / 2;
struct alignas(config.copy_bytes) Piece {
  u16 bits[kPieceColumns];
};
// Returns the lanes of a row of O, with a piece for each.
constexpr int row_lanes() {
  int lanes = 1;
  while (lanes < 32 && lanes * kPieceColumns < config.head_dim_v) lanes *= 2;
  return lanes;
}
constexpr int kRowLanes = row_lanes();

// All blocks of the first launch run this, and there is at least one: keys that nobody has chosen have gradients, too.
__device__ inline void zero_listed_sums(const KernelParams& p, float* key_sums) {
  const Int64 fours = static_cast<Int64>(all_key_rows(p)) * config.heads_kv * (listed_row_floats(config) / 4);
  auto* zeros = reinterpret_cast<float4*>(key_sums);
#pragma unroll 1
  for (Int64 i = static_cast<Int64>(blockIdx.x) * kPrepareThreads + threadIdx.x; i < fours;
       i += static_cast<Int64>(gridDim.x) * kPrepareThreads)
    zeros[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// With s the logits and P = exp(s - lse), lse = log(sum of exp(s)):
//   dP = dO V^T,  ds = P (dP - delta),  delta = sum over columns of dO O - dlse
// since a row of P sums up to 1 with the sink, whose V is 0. Dropout leaves delta as it is, and multiplies what it keeps of
// dP by a factor. Gradients get this factor when they are stored, so that ds is over it, and so is delta. A row that sees
// nothing has an lse of -infinity; +infinity makes its P 0. `sums`: with dq=atomics of dQ, or with lists of dK and dV.
__device__ inline void backward_prepare(const KernelParams& p, RowFacts* facts, float* sums = nullptr,
                                        float* sink_rows = nullptr, float* kv_sums = nullptr,
                                        int* parts_done = nullptr) {
  if constexpr (adds_keys(config)) zero_listed_sums(p, sums);
  if (has_lists(config) && p.batch == 0) return;
  if (config.gradients > 0 && (p.q_len == 0 || p.batch == 0)) return;
  const QueryRows rows = rows_of_block(p);
  const Sequence& seq = rows.seq;
  if constexpr (adds_queries(config)) {
    auto* zeros = reinterpret_cast<float4*>(sums + first_dq_sum(p, seq, seq.h, rows.first));
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

// Stores eight columns of a gradient from their sums.
template <Element output>
__device__ inline void store_eight(void* gradient, Int64 at, const float (&values)[8], float scale) {
  if constexpr (output == Element::f32) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float* to = static_cast<float*>(gradient) + at + j;
      *to = config.accumulate ? *to + values[j] * scale : values[j] * scale;
    }
  } else {
    u32 words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = pack<output>(values[2 * j] * scale, values[2 * j + 1] * scale);
    store_chunk<config.copy_bytes>(static_cast<Bits<output>*>(gradient) + at, {words[0], words[1], words[2], words[3]});
  }
}

// Stores dQ from its sums, in chunks of eight columns.
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
    store_eight<config.output_dq>(p.dq, first + i / kChunks * p.dq_stride.token + i % kChunks * 8, values, kScale);
  }
}

// Stores dK and dV of lists from their sums. With v_in_k both go to dK.
__device__ inline void backward_finish_keys(const KernelParams& p, float* key_sums) {
  constexpr int kOfKeys = config.head_dim_qk / 8, kChunks = kOfKeys + (config.v_in_k ? 0 : config.head_dim_v / 8);
  const auto [first, count, hk] = key_rows_of_block<kPrepareRows>(p);
  for (int i = threadIdx.x; i < count * kChunks; i += kPrepareThreads) {
    const u32 row = first + i / kChunks;
    const int chunk = i % kChunks;
    const bool of_keys = chunk < kOfKeys;
    const int column = (of_keys ? chunk : chunk - kOfKeys) * 8;
    const float *sums_k = listed_sums(key_sums, row, hk), *sums_v = sums_k + padded_dim_qk(config);
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = (of_keys ? sums_k : sums_v)[offset_of_listed_sum(column + j)];
    if (config.v_in_k) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        values[j] =
            values[j] * config.scale + (column < config.head_dim_v ? sums_v[offset_of_listed_sum(column + j)] : 0.0f);
      store_eight<config.output_dk>(p.dk, key_row(p.dk_stride, p, row, hk) + column, values, 1.0f);
    } else if (of_keys)
      store_eight<config.output_dk>(p.dk, key_row(p.dk_stride, p, row, hk) + column, values, config.scale);
    else store_eight<config.output_dv>(p.dv, key_row(p.dv_stride, p, row, hk) + column, values, 1.0f);
  }
}

}  // namespace flashjit
