// Scales of elements of 8 bits. Scores and sums of V are multiplied by them, unless rows were multiplied by them when
// they were widened.
#pragma once

#include "templates/sequence.cuh"

namespace flashjit {

// Returns the scale of a row of a head: all rows of a sequence share one, or blocks of rows do. (kv_rows.cuh has scales
// of single keys.)
__device__ inline float scale_of(const float* scales, const Strides& stride, int b, int head, int row) {
  if (!scales) return 1.0f;
  const int block = config.scale_block > 0 ? row / config.scale_block : 0;
  return scales[b * stride.batch + head * stride.head + block * stride.token];
}

__device__ inline float query_scale(const KernelParams& params, const Sequence& seq, int q) {
  const int row = kChosen ? static_cast<int>(seq.q_token) + q : q;
  return has_scaled_queries(config) ? scale_of(params.scale_q, params.scale_q_stride, seq.b, seq.h, row) : 1.0f;
}

// True if the loop multiplies what it finds in products by one scale of all keys.
constexpr bool kScalesProducts = is_scaled(config) && !has_key_scales(config) && !config.widened_rows;

// Returns the scale of K, where all keys share it.
__device__ inline float key_scale(const KernelParams& params, const Sequence& seq) {
  if constexpr (!kScalesProducts) return 1.0f;
  return scale_of(params.scale_k, params.scale_k_stride, seq.b, seq.hk, 0);
}

// Returns the factor that turns products of a query and K into scores. It leaves out scales of keys that are found for
// each tile.
__device__ inline float score_scale(const KernelParams& params, const Sequence& seq, int q) {
  return config.scale * query_scale(params, seq, q) * key_scale(params, seq);
}
// Returns the factor that turns sums of V into O. It leaves out scales of keys that are found for each tile, too.
__device__ inline float value_scale(const KernelParams& params, const Sequence& seq) {
  if constexpr (!kScalesProducts) return 1.0f;
  return scale_of(params.scale_v, params.scale_v_stride, seq.b, seq.hk, 0);
}

// Without keys nobody has found a scale. O is 0 then, and must not be multiplied by whatever lies in the scale's place.
__device__ inline float value_scale_if_any(const KernelParams& params, const Sequence& seq) {
  return seq.k_len == 0 ? 1.0f : value_scale(params, seq);
}

}  // namespace flashjit
