// The textbook version of gradients: P and ds of all queries and keys go to memory (16 bits), and two more kernels
// multiply them. They share the matrix instructions and the mask and score functions with the fused kernels.
#pragma once

#include "templates/naive/tiles.cuh"
#include "templates/row_algebra.cuh"
#include "variant.gen.cuh"

namespace flashjit {

__device__ inline float naive_number(u16 bits) {
  return config.element == Element::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
}

struct NaiveRow {
  float lse, delta;  // lse is for exp2; delta, the sum of dO O - dlse, is subtracted from dP.
};

// A warp finds the facts of a query. A row that sees no key has an lse of -infinity, which becomes +infinity and makes
// its P 0.
__device__ inline NaiveRow naive_row_facts(const KernelParams& p, const Sequence& seq, int q) {
  using Stored = Bits<config.element>;
  const auto* o = static_cast<const Stored*>(p.o) + query_row(p.o_stride, seq, seq.h, q);
  const auto* d_o = static_cast<const Stored*>(p.d_o) + query_row(p.d_o_stride, seq, seq.h, q);
  float delta = 0;
  for (int column = threadIdx.x % 32; column < config.head_dim_v; column += 32)
    delta += naive_number(o[column]) * naive_number(d_o[column]);
  for (int step = 16; step > 0; step /= 2) delta += __shfl_xor_sync(0xffffffff, delta, step);
  const Int64 row = result_row(p, seq, q);
  if constexpr (config.dlse) delta -= p.d_lse[row] / kNaturalLse;
  const float lse = p.lse[row];
  return {lse == -kInfinity ? kInfinity : lse * (kNaturalLse * kLog2e), delta};
}

// Computes sums = rows of queries times rows of keys, for one 64x64 tile.
template <int head_dim, int padded_dim>
__device__ inline void naive_products(float (&sums)[kNaiveTile / 8][4], const void* of_queries, const Strides& q_stride,
                                      const void* of_keys, const Strides& k_stride, const Sequence& seq, int q_lo,
                                      int k_lo) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Rows = StridedRows<Bits<config.element>>;
  const auto* q = static_cast<const Rows::Element*>(of_queries) + query_row(q_stride, seq, seq.h, 0);
  const auto* k = static_cast<const Rows::Element*>(of_keys) + key_begin(k_stride, seq);
  const u32 queries = shared_address(shared),
            keys = queries + tile_layout(kNaiveTile, padded_dim, config.element).bytes();
  __syncthreads();  // Every warp has finished with the tiles before.
  copy_tile<kNaiveThreads, kNaiveTile, head_dim, config.copy_bytes>(queries, Rows{q, q_stride.token}, q_lo, seq.q_len);
  copy_tile<kNaiveThreads, kNaiveTile, head_dim, config.copy_bytes>(keys, Rows{k, k_stride.token}, k_lo, seq.k_len);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  naive_multiply_rows<padded_dim>(sums, queries, keys);
}

// Computes P = exp(s - lse), where s are the logits, and ds = P (dO V^T - delta) ds/d(scale q.k), for one 64x64 tile.
__device__ inline void naive_score_gradients(const KernelParams& params, u16* probabilities, u16* gradients) {
  __shared__ NaiveRow facts[kNaiveTile];
  const int tiles_q = (params.q_len + kNaiveTile - 1) / kNaiveTile,
            tiles_k = (params.k_len + kNaiveTile - 1) / kNaiveTile;
  const WorkItem item = naive_item(params, blockIdx.x, tiles_q * tiles_k);
  const Sequence& seq = item.seq;
  const int q_lo = item.tile / tiles_k * kNaiveTile, k_lo = item.tile % tiles_k * kNaiveTile;
  if (q_lo >= seq.q_len || k_lo >= seq.k_len) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const FourWords drawn = dropout_key<config.places>(params);
  for (int i = warp; i < min(kNaiveTile, seq.q_len - q_lo); i += kNaiveThreads / 32) {
    const NaiveRow of_row = naive_row_facts(params, seq, q_lo + i);
    if (lane == 0) facts[i] = of_row;
  }
  float s[kNaiveTile / 8][4] = {}, dp[kNaiveTile / 8][4] = {};
  naive_products<config.head_dim_qk, padded_dim_qk(config)>(s, params.q, params.q_stride, params.k, params.k_stride,
                                                            seq, q_lo, k_lo);
  naive_products<config.head_dim_v, padded_dim_v(config)>(dp, params.d_o, params.d_o_stride, params.v, params.v_stride,
                                                          seq, q_lo, k_lo);
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const int of_tile = warp * 16 + lane / 4 + h * 8, row = q_lo + of_tile;
    if (row >= seq.q_len) continue;
    const Int64 first = naive_row(params, seq, row) * naive_probability_stride(params.k_len);
#pragma unroll
    for (int j = 0; j < kNaiveTile / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = k_lo + j * 8 + lane % 4 * 2 + e;
        float p = 0, ds = 0;
        if (key < seq.k_len && (!config.has_mask || Variant::visible(params, seq, row, key))) {
          const auto [x, slope] =
              Variant::score_and_slope(params, seq, (h ? s[j][2 + e] : s[j][e]) * config.scale, row, key);
          p = exp2_approx(x * kLog2e - facts[of_tile].lse);
          const bool dropped = config.dropped > 0 && naive_drops(drawn, seq, row, key);
          const float of_v = dropped ? 0.0f : (h ? dp[j][2 + e] : dp[j][e]) * dropout_factor(config.dropped);
          if (p != 0) ds = p * (of_v - facts[of_tile].delta) * slope;
          if (dropped) p = 0;
        }
        probabilities[first + key] = static_cast<u16>(pack<config.element>(p, 0.0f));
        gradients[first + key] = static_cast<u16>(pack<config.element>(ds, 0.0f));
      }
  }
}

// Computes dQ = ds K for 64 queries.
__device__ inline void naive_query_gradients(const KernelParams& params, const u16* gradients) {
  const WorkItem item = naive_item(params, blockIdx.x, (params.q_len + kNaiveTile - 1) / kNaiveTile);
  const Sequence& seq = item.seq;
  const int q_lo = item.tile * kNaiveTile;
  if (q_lo >= seq.q_len) return;
  using Rows = StridedRows<Bits<config.element>>;
  const auto* k = static_cast<const Rows::Element*>(params.k) + key_begin(params.k_stride, seq);
  float dq[padded_dim_qk(config) / 8][4] = {};
  naive_add_products<false, config.head_dim_qk>(dq, params, seq, gradients, q_lo, Rows{k, params.k_stride.token},
                                                seq.k_len);
  naive_store<config.output_dq, config.head_dim_qk>(params.dq, query_row(params.dq_stride, seq, seq.h, 0),
                                                    params.dq_stride.token, dq, config.scale, q_lo, seq.q_len);
}

// Computes weights^T rows of queries, over the heads of a KV head, for 64 keys. `seq` has the first of these heads.
template <Element output, int head_dim, int padded_dim>
__device__ inline void naive_key_gradient(const KernelParams& params, Sequence seq, const u16* weights,
                                          const void* of_queries, const Strides& q_stride, void* result,
                                          const Strides& k_stride, float factor, int k_lo) {
  using Rows = StridedRows<Bits<config.element>>;
  float sums[padded_dim / 8][4] = {};
#pragma unroll 1
  for (int i = 0; i < group_size(config); ++i, ++seq.h) {
    const auto* rows = static_cast<const Rows::Element*>(of_queries) + query_row(q_stride, seq, seq.h, 0);
    naive_add_products<true, head_dim>(sums, params, seq, weights, k_lo, Rows{rows, q_stride.token}, seq.q_len);
  }
  naive_store<output, head_dim>(result, key_begin(k_stride, seq), k_stride.token, sums, factor, k_lo, seq.k_len);
}

// Computes dK = ds^T Q and dV = P^T dO.
__device__ inline void naive_key_gradients(const KernelParams& params, const u16* probabilities, const u16* gradients) {
  const int tiles = (params.k_len + kNaiveTile - 1) / kNaiveTile, head = blockIdx.x / tiles,
            k_lo = blockIdx.x % tiles * kNaiveTile;
  const Sequence seq = sequence_of(params, head / config.heads_kv, head % config.heads_kv * group_size(config));
  if (k_lo >= seq.k_len) return;
  naive_key_gradient<config.output_dk, config.head_dim_qk, padded_dim_qk(config)>(
      params, seq, gradients, params.q, params.q_stride, params.dk, params.dk_stride, config.scale, k_lo);
  naive_key_gradient<config.output_dv, config.head_dim_v, padded_dim_v(config)>(
      params, seq, probabilities, params.d_o, params.d_o_stride, params.dv, params.dv_stride,
      dropout_factor(config.dropped), k_lo);
}

}  // namespace flashjit
