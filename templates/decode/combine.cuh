// The second launch of the decode family: puts together what several blocks have of a row. A block for every row, which
// has nothing to do where one block of the first launch had all of it.
#pragma once

#include "templates/decode/rows.cuh"

namespace flashjit {

constexpr int kCombineWarps = kCombineThreads / 32;

// The parts of a row: one of each range that its tile falls into.
struct RowParts {
  const float* parts;
  int first_range, count, side, row;
  bool begins_range;  // the tile begins with its first range

  __device__ const float* part(int i) const {
    return parts + static_cast<Int64>(part_of(first_range + i, side, i > 0 || begins_range)) * kPartFloats;
  }
  __device__ float4 state(int i) const {
    return *reinterpret_cast<const float4*>(part(i) + kTileRows * kPartRow + row * kRowState);
  }
  __device__ float4 values(int i, int column) const {
    return *reinterpret_cast<const float4*>(part(i) + row * kPartRow + column);
  }
};

__device__ inline void add_part(RowState& whole, const float4& state, float weight) {
  whole.sum += state.y * weight;
  whole.top = fmaxf(whole.top, state.z);
}

// A warp's share of the parts: every kCombineWarps-th, a few at a time so that their loads are under way together.
__device__ inline float4 combine_parts(const RowParts& row, int column, RowState& whole) {
  constexpr int kAtATime = 8;
  float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < row.count; first += kCombineWarps * kAtATime) {
    float4 state[kAtATime], values[kAtATime];
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) {
      const int at = first + i * kCombineWarps;
      state[i] = make_float4(-kInfinity, 0, -kInfinity, 0);
      values[i] = make_float4(0, 0, 0, 0);
      if (at >= row.count) continue;
      state[i] = row.state(at);
      values[i] = row.values(at, column);
    }
    float reference = whole.reference;
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) reference = fmaxf(reference, state[i].x);
    const float kept = weight_of(whole.reference, reference);
    whole.reference = reference;
    whole.sum *= kept;
    o = scaled(o, kept);
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) {
      const float weight = weight_of(state[i].x, reference);
      add_part(whole, state[i], weight);
      add_scaled(o, values[i], weight);
    }
  }
  return o;
}

// What the warps have, in the first one.
__device__ inline float4 combine_warps(float4* shared, float4 o, RowState& whole) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();  // the columns before are done with
  shared[warp * 64 + lane] = o;
  shared[warp * 64 + 32 + lane] = make_float4(whole.reference, whole.sum, whole.top, 0);
  __syncthreads();
  o = make_float4(0, 0, 0, 0);
  if (warp > 0) return o;
  whole = {-kInfinity, 0, -kInfinity};
#pragma unroll
  for (int w = 0; w < kCombineWarps; ++w) whole.reference = fmaxf(whole.reference, shared[w * 64 + 32 + lane].x);
#pragma unroll
  for (int w = 0; w < kCombineWarps; ++w) {
    const float4 state = shared[w * 64 + 32 + lane];
    const float weight = weight_of(state.x, whole.reference);
    add_part(whole, state, weight);
    add_scaled(o, shared[w * 64 + lane], weight);
  }
  return o;
}

__device__ inline void decode_combine(const KernelParams& params, const float* parts) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int head = blockIdx.x / params.q_len, q = blockIdx.x % params.q_len;
  const Sequence seq = sequence_of(params, head / config.heads_q, head % config.heads_q);
  const Tiles tiles = tiles_of(params, seq);
  const int2 steps = count_steps<kCombineThreads>(params, seq.b, reinterpret_cast<int*>(shared));
  if (q >= seq.q_len) return;
  const int place = q * kGroup + seq.h % kGroup;
  RowParts row = {parts, 0, 0, seq.hk % kSideBySide, place % kTileRows, false};
  if (tiles.count > 0) {
    const Ranges ranges = ranges_of(params, steps.x);
    const int begin = steps.y + (seq.hk / kSideBySide * tiles.row_tiles + place / kTileRows) * tiles.count;
    row.first_range = ranges.of(begin);
    row.count = ranges.of(begin + tiles.count - 1) - row.first_range + 1;
    row.begins_range = ranges.begin(row.first_range) == begin;
    if (row.count == 1) return;
  }
  const int lane_column = threadIdx.x % 32 * 4;
#pragma unroll 1
  for (int column = lane_column; column - lane_column < config.head_dim_v; column += 128) {
    const bool inside = column < config.head_dim_v;
    RowState whole = {-kInfinity, 0, -kInfinity};
    float4 o = combine_parts(row, inside ? column : 0, whole);
    o = combine_warps(reinterpret_cast<float4*>(shared), o, whole);
    if (threadIdx.x >= 32 || !inside) continue;
    const Row at = {q, seq.h};
    const float factor = finish_row(params, seq, at, whole, column == 0);
    store_columns(params, seq, at, column, scaled(o, factor));
  }
}

}  // namespace flashjit
