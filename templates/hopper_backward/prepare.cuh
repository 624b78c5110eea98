// Prepares the backward loop: computes the row terms, to which scores and dP are relative, and sets sums of dQ to zero.
#pragma once

#include "templates/backward/parameters.cuh"
#include "templates/backward/parts.cuh"
#include "templates/dropout.cuh"
#include "templates/hopper_backward/tiles.cuh"
#include "templates/row_algebra.cuh"

namespace flashjit {

// Returns three numbers of 16 bits that add up to x; a product with ones adds them up again. They are bf16, whatever
// the elements are, because fp16 has a smaller range than float.
__device__ inline uint4 split_in_three(float x) {
  u32 bits[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    bits[i] = pack<Element::bf16>(x, 0.0f);
    x -= float_from_bf16(static_cast<u16>(bits[i]));
  }
  return make_uint4(bits[0] | bits[1] << 16, bits[2], 0, 0);
}

template <Element element>
__device__ inline float element_of(u32 pair, int i) {
  const u16 bits = static_cast<u16>(pair >> 16 * i);
  return element == Element::f16 ? float_from_f16(bits) : float_from_bf16(bits);
}

__device__ inline float sum_of_split(u32 first, u32 second) {
  return element_of<Element::bf16>(first, 0) + element_of<Element::bf16>(first, 1) +
         element_of<Element::bf16>(second, 0);
}

// Returns what eight columns add to rowsum(dO o O).
__device__ inline float product_of_eights(const uint4& a, const uint4& b) {
  const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    sum += element_of<config.element>(x[i / 2], i % 2) * element_of<config.element>(y[i / 2], i % 2);
  return sum;
}

constexpr float kExponentScale = config.scale * kLog2e;  // Products times this are exponents of 2.
// The LSE of a row that sees no key is -infinity. This value stands in its place, and makes each P of the row 0.
constexpr float kHidesRow = config.scale > 0 ? -1e30f : 1e30f;

__device__ inline HeadSums head_sums_of(const KernelParams& params, float* data) {
  return {data, (params.k_len + config.tile_kv - 1) / config.tile_kv, config.hopper_backward.warpgroups * 4};
}
// Starts gradients of parameters, before prepare_backward() ...
__device__ inline void begin_parameters(const KernelParams& params, float* head_sums = nullptr,
                                        const char* kept_ds = nullptr) {
  zero_gradients<kPrepareThreads, kLoopZeroes>(params, kept_ds != nullptr);
  if constexpr (Variant::kHeadReads > 0) zero_head_sums<kPrepareThreads>(params, head_sums_of(params, head_sums));
}
// ... and finishes them, in a launch after all others.
__device__ inline void end_parameters(const KernelParams& params, const float* sink_rows, float* head_sums = nullptr) {
  sum_gradients(params, sink_rows, head_sums_of(params, head_sums));
}

// Writes the terms of one row to its row of `terms`. All threads of the block call this function; a thread without a
// row has sum 0, and its row is hidden.
__device__ inline void write_row_terms(uint4* terms, int row, bool has_row, bool hidden, float lse, float sum) {
  sum *= kKeptShare;
  const float minus_lse = hidden ? kHidesRow : -lse * (1.0f / config.scale);
  const uint4 of_scores = split_in_three(minus_lse);
  if constexpr (in_clusters(config)) {
    // Products for scores multiply the numbers of dP by 0, so these must not be NaN or infinite. A mark stands for a
    // number that is not finite, and each row has a mark in the terms of scores if there is any.
    constexpr float kLargest = 1e38f;
    const bool lost = !hidden && !(fabsf(sum) < kLargest);
    const bool any = __syncthreads_or(lost);
    const uint4 of_dp = split_in_three(hidden || lost ? 0.0f : -sum);
    const u32 mark = pack<Element::bf16>(0.0f, 1.0f);
    if (has_row)
      terms[row] = make_uint4(of_scores.x, of_scores.y | (any ? mark : 0), of_dp.x, of_dp.y | (lost ? mark : 0));
  } else if (has_row) {
    if constexpr (lse_is_float(config)) reinterpret_cast<float*>(terms)[row] = minus_lse * kExponentScale;
    else terms[row] = of_scores;
    if constexpr (kDrops) reinterpret_cast<float*>(terms + config.tile_q)[row] = hidden ? 0.0f : -sum;
    else terms[config.tile_q + row] = split_in_three(hidden ? 0.0f : -sum);
  }
}

// Sets to zero what the loop adds to: counters, and the sums of a query tile, unless an item of the loop does that.
__device__ inline void clear(const KernelParams& params, int number, float* dq_sums, int* counters, int* added,
                             int* dealt) {
  if (adds_in_order(config) && threadIdx.x < config.hopper_backward.cluster)
    added[number * config.hopper_backward.cluster + threadIdx.x] = 0;
  if (adds_in_order(config) && number == 0 && threadIdx.x == 0) *dealt = 0;
  if constexpr (counts_items(config)) {
    if (number < heads_with_keys(params) && threadIdx.x == 0) {
      counters[number] = 0;
      *zeroed_of(params, number, counters) = 0;
    }
  }
  if constexpr (kZeroesAhead) {
    const Ahead all(params);
    if (zeroes_ahead(params) && all.items > 0 && number >= all.first_tile(params, min(all.ahead, all.items))) return;
  }
  auto* sums = reinterpret_cast<float4*>(dq_sums + static_cast<Int64>(number) * dq_sum_floats(config));
  for (int i = threadIdx.x; i < dq_sum_floats(config) / 4; i += kPrepareThreads)
    sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Each block prepares a query tile of a head and batch index.
__device__ inline void prepare_backward(const KernelParams& params, char* row_terms, float* dq_sums = nullptr,
                                        float* sink_rows = nullptr, int* counters = nullptr, int* added = nullptr,
                                        int* dealt = nullptr, float* kv_sums = nullptr, int* parts_done = nullptr) {
  if constexpr (cuts_items(config))
    PartSums{kv_sums, parts_done}.clear<kPrepareThreads>(params, cut_warps(config), cut_floats(config));
  if (config.gradients > 0 && (params.q_len == 0 || params.batch == 0)) return;
  constexpr int kEights = config.head_dim_v / 8;
  constexpr int kLanes = kEights <= 8 ? 8 : kEights <= 16 ? 16 : 32;  // The number of lanes that share a row.
  constexpr int kRowsAtATime = kPrepareThreads / kLanes;
  const int number = last_first();
  const auto [seq, tile] = query_tile(params, number);
  const int head = seq.h;
  if (kPacked && tile * config.tile_q >= seq.q_len) return;
  const Int64 at = number;
  if constexpr (adds_dq(config)) clear(params, number, dq_sums, counters, added, dealt);

  // All rows of a thread are loaded before the first one is used.
  const auto* o = static_cast<const u16*>(params.o) + query_row(params.o_stride, seq, head, 0);
  const auto* d_o = static_cast<const u16*>(params.d_o) + query_row(params.d_o_stride, seq, head, 0);
  extern __shared__ float sums_of_rows[];
  constexpr int kRows = config.tile_q / kRowsAtATime;
  const int lane = threadIdx.x % kLanes, first = tile * config.tile_q;
  uint4 a[kRows], b[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int q = first + i * kRowsAtATime + static_cast<int>(threadIdx.x) / kLanes;
    a[i] = b[i] = make_uint4(0, 0, 0, 0);
    if (q < seq.q_len && lane < kEights) {
      a[i] = *reinterpret_cast<const uint4*>(o + q * params.o_stride.token + lane * 8);
      b[i] = *reinterpret_cast<const uint4*>(d_o + q * params.d_o_stride.token + lane * 8);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float sum = product_of_eights(a[i], b[i]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    if (lane == 0) sums_of_rows[i * kRowsAtATime + threadIdx.x / kLanes] = sum;
  }
  __syncthreads();
  const int row = threadIdx.x, q = first + row;
  const bool has_row = row < config.tile_q;
  float sum = has_row ? sums_of_rows[row] : 0.0f, lse = -kInfinity;
  if (has_row && q < seq.q_len) {
    const Int64 result = result_row(params, seq, q);
    lse = params.lse[result] * kNaturalLse;
    if constexpr (config.dlse) sum -= params.d_lse[result] / kNaturalLse;
    if constexpr (config.sink_gradient)
      sink_rows[head * all_queries(params) + queries_before(params, seq) + q] = sink_share(params, seq, lse, sum);
  }
  write_row_terms(reinterpret_cast<uint4*>(row_terms + at * row_terms_bytes(config)), row, has_row, lse == -kInfinity,
                  lse, sum);
}

}  // namespace flashjit
