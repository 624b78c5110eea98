// Puts together what several blocks have computed of a query tile with keys=parts. The parts of a row are weighted by
// their sums, which are relative to references of their own. (The LSE would not do: of scores like -3e38 it has no
// digits left for the sum.)
#pragma once

#include "templates/hopper/output.cuh"

namespace flashjit {

// Stores four columns of a row of O.
__device__ inline void store_four(const KernelParams& params, Int64 at, const float4& o) {
  if constexpr (config.output == Element::f32) *reinterpret_cast<float4*>(static_cast<float*>(params.o) + at) = o;
  else
    store_global(static_cast<Bits<config.output>*>(params.o) + at,
                 make_uint2(pack<config.output>(o.x, o.y), pack<config.output>(o.z, o.w)));
}

// `of_tile` is the first part of the tile.
__device__ inline void combine_four(const KernelParams& params, const WorkItem& item, const float* of_tile, int row,
                                    int column) {
  constexpr int kFloats = hopper_part_floats(config);
  Sequence seq = item.seq;
  const int q = item.tile * kQueries + row / kGroup;
  seq.h += row % kGroup;
  if (q >= seq.q_len) return;
  const float *references = of_tile + kTileQ * config.head_dim_v + row, *sums = references + kTileQ;
  float reference = -kInfinity, top = -kInfinity;
#pragma unroll 4
  for (int part = 0; part < params.parts; ++part) {
    if (sums[part * kFloats] == 0.0f) continue;  // This part has seen no keys of the row.
    reference = fmaxf(reference, references[part * kFloats]);
    if constexpr (config.max_logit) top = fmaxf(top, sums[part * kFloats + kTileQ]);
  }
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float sum = 0;
#pragma unroll 4
  for (int part = 0; part < params.parts; ++part) {
    const float own = sums[part * kFloats];
    const float weight = own * exp2_approx((references[part * kFloats] - reference) * kLog2e);
    const float4 more = *reinterpret_cast<const float4*>(of_tile + part * kFloats + row * config.head_dim_v + column);
    if (own == 0.0f) continue;  // The part has seen no keys, and its O may be anything.
    o = make_float4(o.x + more.x * weight, o.y + more.y * weight, o.z + more.z * weight, o.w + more.w * weight);
    sum += weight;
  }
  float scale = 1.0f;
  // The head is derived again, because keeping it would take a register of the loops.
  if constexpr (config.sink)
    scale = add_sink(params, static_cast<int>(recompute(static_cast<u32>(seq.h))), reference, sum);
  scale = sum == 0.0f ? 0.0f : scale / sum;
  store_four(params, query_row(params.o_stride, seq, seq.h, q) + column,
             make_float4(o.x * scale, o.y * scale, o.z * scale, o.w * scale));
  if (column != 0) return;
  const Int64 at = result_row(params, seq, q);
  store_row_results(params, at, reference, sum, top);
}

// Each block combines some rows of a query tile.
__device__ inline void combine_key_parts(const KernelParams& params, const float* parts) {
  constexpr int kFours = config.head_dim_v / 4, kPieces = kTileQ / kCombinedRows;
  const int rank = blockIdx.x / kPieces, first = blockIdx.x % kPieces * kCombinedRows;
  const WorkItem item = item_at(params, rank);
  if (item.tile * kQueries >= item.seq.q_len) return;
  const float* of_tile = parts + static_cast<Int64>(rank) * params.parts * hopper_part_floats(config);
#pragma unroll 1
  for (int i = threadIdx.x; i < kCombinedRows * kFours; i += kCombiningThreads)
    combine_four(params, item, of_tile, first + i / kFours, i % kFours * 4);
}

}  // namespace flashjit
