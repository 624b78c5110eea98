// Before the backward loop: what its scores and dP are relative to, and zeros where dQ is summed.
#pragma once

#include "templates/hopper_backward/layout.h"
#include "templates/row_algebra.cuh"
#include "templates/sequence.cuh"

namespace flashjit {

// Three numbers of 16 bits that add up to x, which a product with ones adds up again. fp16 does not reach as far as
// float: what is beyond it is cut.
__device__ inline uint4 in_three_parts(float x) {
  u32 part[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if constexpr (config.element == Element::f16) {
      part[i] = pack<config.element>(fminf(fmaxf(x, -65504.0f), 65504.0f), 0.0f);
      x -= float_from_f16(static_cast<u16>(part[i]));
    } else {
      part[i] = pack<config.element>(x, 0.0f);
      x -= float_from_bf16(static_cast<u16>(part[i]));
    }
  }
  return make_uint4(part[0] | part[1] << 16, part[2], 0, 0);
}

template <Element element>
__device__ inline float element_of(u32 pair, int i) {
  const u16 bits = static_cast<u16>(pair >> 16 * i);
  return element == Element::f16 ? float_from_f16(bits) : float_from_bf16(bits);
}

__device__ inline float sum_of_parts(u32 first, u32 second) {
  return element_of<config.element>(first, 0) + element_of<config.element>(first, 1) +
         element_of<config.element>(second, 0);
}

// The part of rowsum(dO o O) of eight columns.
__device__ inline float product_of_eights(const uint4& a, const uint4& b) {
  const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    sum += element_of<config.element>(x[i / 2], i % 2) * element_of<config.element>(y[i / 2], i % 2);
  return sum;
}

// The LSE of a row that sees no key is -infinity, and what takes its place makes each P of it 0.
constexpr float kHidesRow = config.scale > 0 ? -1e30f : 1e30f;

// One block for each query tile of each head and batch index.
__device__ inline void prepare_backward(const KernelParams& params, char* row_terms, float* dq_sums = nullptr) {
  constexpr int kEights = config.head_dim_v / 8;
  constexpr int kLanes = kEights <= 8 ? 8 : kEights <= 16 ? 16 : 32;  // of a row
  constexpr int kRowsAtATime = kPrepareThreads / kLanes;
  const int tile = blockIdx.x % params.tiles_q, heads = blockIdx.x / params.tiles_q, head = heads % config.heads_q;
  const Sequence seq = sequence_of(params, heads / config.heads_q, head);
  const Int64 at = blockIdx.x;
  if constexpr (config.dq == DqSums::atomics) {
    float4* sums = reinterpret_cast<float4*>(dq_sums + at * dq_sum_floats(config));
    for (int i = threadIdx.x; i < dq_sum_floats(config) / 4; i += kPrepareThreads)
      sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }

  // All of a thread's rows are on their way before the first is looked at.
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
  if (row >= config.tile_q) return;
  float sum = sums_of_rows[row], lse = -kInfinity;
  if (q < seq.q_len) {
    const Int64 result = result_row(params, seq, q);
    lse = params.lse[result] * kNaturalLse;
    if constexpr (config.dlse) sum -= params.d_lse[result] / kNaturalLse;
  }
  const bool hidden = lse == -kInfinity;
  auto* terms = reinterpret_cast<uint4*>(row_terms + at * row_terms_bytes(config)) + row;
  terms[0] = in_three_parts(hidden ? kHidesRow : -lse * (1.0f / config.scale));
  terms[config.tile_q] = in_three_parts(hidden ? 0.0f : -sum);
}

}  // namespace flashjit
