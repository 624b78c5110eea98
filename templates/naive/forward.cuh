// The textbook version of attention: scores, softmax and product as three kernels, with S (fp32) and P (16 bits)
// written to memory in between. It shares the matrix instructions and the mask and score functions with the fused
// kernel, so what a comparison shows is the cost of going through memory.
#pragma once

#include "templates/naive/tiles.cuh"
#include "templates/row_algebra.cuh"
#include "templates/score_and_mask.cuh"

namespace flashjit {

// Computes S = score(scale * Q K^T), with -infinity where a key is not visible, for one 64x64 tile.
__device__ inline void naive_scores(const KernelParams& params, float* scores) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr TileLayout kTile = tile_layout(kNaiveTile, padded_dim_qk(config), config.element);
  const int tiles_q = (params.q_len + kNaiveTile - 1) / kNaiveTile,
            tiles_k = (params.k_len + kNaiveTile - 1) / kNaiveTile;
  const WorkItem item = naive_item(params, blockIdx.x, tiles_q * tiles_k);
  const Sequence& seq = item.seq;
  const int q_lo = item.tile / tiles_k * kNaiveTile, k_lo = item.tile % tiles_k * kNaiveTile;
  if (q_lo >= seq.q_len || k_lo >= seq.k_len) return;

  const auto* q = static_cast<const Asked*>(params.q) + query_row(params.q_stride, seq, seq.h, 0);
  const auto* k = static_cast<const Cached*>(params.k) + key_begin(params.k_stride, seq);
  const u32 queries = shared_address(shared), keys = queries + kTile.bytes();
  copy_tile<kNaiveThreads, kNaiveTile, config.head_dim_qk, config.copy_bytes, config.queries>(
      queries, StridedRows<Asked>{q, params.q_stride.token}, q_lo, seq.q_len);
  copy_tile<kNaiveThreads, kNaiveTile, config.head_dim_qk, config.copy_bytes>(
      keys, key_rows(params, params.k_stride, k, seq), k_lo, seq.k_len);
  commit_copies();
  wait_copies<0>();
  __syncthreads();

  const float scale = score_scale(params, seq, 0);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float s[kNaiveTile / 8][4] = {};
  naive_multiply_rows<padded_dim_qk(config)>(s, queries, keys);
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const int row = q_lo + warp * 16 + lane / 4 + h * 8;
    if (row >= seq.q_len) continue;
    float* out = scores + naive_row(params, seq, row) * params.k_len;
#pragma unroll
    for (int j = 0; j < kNaiveTile / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = k_lo + j * 8 + lane % 4 * 2 + e;
        if (key >= seq.k_len) continue;
        const float x = logit<false>(params, seq, (h ? s[j][2 + e] : s[j][e]) * scale, row, key);
        out[key] = is_hidden(params, seq, row, key) ? -kInfinity : x;
      }
  }
}

// Combines one value of every thread of the block.
template <class Combine>
__device__ inline float block_reduce(float x, float neutral, Combine combine) {
  __shared__ float partial[kNaiveThreads / 32];
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffff, x, step));
  __syncthreads();  // The last use of `partial` is over.
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float all = neutral;
  for (float p : partial) all = combine(all, p);
  return all;
}

// Computes P = softmax(S), one row per block, with the row's LSE and maximum.
__device__ inline void naive_softmax(const KernelParams& params, const float* scores, u16* probabilities) {
  const WorkItem item = naive_item(params, blockIdx.x, params.q_len);
  const Sequence& seq = item.seq;
  const int q = item.tile;
  if (q >= seq.q_len) return;
  const float* s = scores + naive_row(params, seq, q) * params.k_len;
  u16* p = probabilities + naive_row(params, seq, q) * naive_probability_stride(params.k_len);

  float top = -kInfinity;
  for (int k = threadIdx.x; k < seq.k_len; k += kNaiveThreads) top = fmaxf(top, s[k]);
  top = block_reduce(top, -kInfinity, [](float a, float b) { return fmaxf(a, b); });
  const float visible_top = top;
  if (config.sink) top = fmaxf(top, params.sink[seq.h]);
  const float reference = top == -kInfinity ? 0.0f : top;

  float sum = 0;
  for (int k = threadIdx.x; k < seq.k_len; k += kNaiveThreads) sum += exp2_approx((s[k] - reference) * kLog2e);
  sum = block_reduce(sum, 0.0f, [](float a, float b) { return a + b; });
  if (config.sink) sum += exp2_approx((params.sink[seq.h] - reference) * kLog2e);

  const float inverse = sum == 0.0f ? 0.0f : dropout_factor(config.dropped) / sum;
  const FourWords key = dropout_key<config.places>(params);
  for (int k = threadIdx.x; k < round_up(seq.k_len, kNaiveTile); k += kNaiveThreads) {
    float weight = k < seq.k_len ? exp2_approx((s[k] - reference) * kLog2e) * inverse : 0.0f;
    if (config.dropped > 0 && naive_drops(key, seq, q, k)) weight = 0.0f;
    p[k] = static_cast<u16>(pack<config.element>(weight, 0.0f));
  }
  if (threadIdx.x != 0) return;
  const Int64 row = result_row(params, seq, q);
  store_lse(params, row, reference, sum);
  if (config.max_logit) params.max_logit[row] = sum != sum ? sum : visible_top;
}

// Computes O = P V for 64 query rows and all of d_v.
__device__ inline void naive_product(const KernelParams& params, const u16* probabilities) {
  const WorkItem item = naive_item(params, blockIdx.x, (params.q_len + kNaiveTile - 1) / kNaiveTile);
  const Sequence& seq = item.seq;
  const int q_lo = item.tile * kNaiveTile;
  if (q_lo >= seq.q_len) return;
  const auto* v = static_cast<const Cached*>(params.v) + key_begin(params.v_stride, seq);
  const int end = min(Variant::kv_end(params, seq, q_lo, min(q_lo + kNaiveTile, seq.q_len) - 1), seq.k_len);
  float o[padded_dim_v(config) / 8][4] = {};
  naive_add_products<false, config.head_dim_v>(o, params, seq, probabilities, q_lo,
                                               key_rows(params, params.v_stride, v, seq), end);
  naive_store<config.output, config.head_dim_v>(params.o, query_row(params.o_stride, seq, seq.h, 0),
                                                params.o_stride.token, o, value_scale_if_any(params, seq), q_lo,
                                                seq.q_len);
}

}  // namespace flashjit
