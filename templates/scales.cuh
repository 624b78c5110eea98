// Scales of elements of 8 bits. No element is multiplied with them: they go to scores, and to sums of V.
#pragma once

#include "templates/sequence.cuh"

namespace flashjit {

// Of a row of a head: all of a sequence share one, or blocks of rows do. (Those of single keys: kv_rows.cuh.)
__device__ inline float scale_of(const float* scales, const Strides& stride, int b, int head, int row) {
  if (!scales) return 1.0f;
  const int block = config.scale_block > 0 ? row / config.scale_block : 0;
  return scales[b * stride.batch + head * stride.head + block * stride.token];
}

__device__ inline float query_scale(const KernelParams& params, const Sequence& seq, int q) {
  return has_scaled_queries(config) ? scale_of(params.scale_q, params.scale_q_stride, seq.b, seq.h, q) : 1.0f;
}

// Of K, where all keys share it.
__device__ inline float key_scale(const KernelParams& params, const Sequence& seq) {
  if constexpr (!is_scaled(config) || has_key_scales(config)) return 1.0f;
  return scale_of(params.scale_k, params.scale_k_stride, seq.b, seq.hk, 0);
}

// What makes scores of products of a query and K; where scales of keys are found for each tile, without these.
__device__ inline float score_scale(const KernelParams& params, const Sequence& seq, int q) {
  return config.scale * query_scale(params, seq, q) * key_scale(params, seq);
}
// What makes O of sums of V, likewise.
__device__ inline float value_scale(const KernelParams& params, const Sequence& seq) {
  if constexpr (!is_scaled(config) || has_key_scales(config)) return 1.0f;
  return scale_of(params.scale_v, params.scale_v_stride, seq.b, seq.hk, 0);
}

// Of no keys nobody has found a scale, and O, which is 0 then, must not be multiplied with whatever lies there.
__device__ inline float value_scale_if_any(const KernelParams& params, const Sequence& seq) {
  return seq.k_len == 0 ? 1.0f : value_scale(params, seq);
}

}  // namespace flashjit
