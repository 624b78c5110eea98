// Sizes that the naive family derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

// The textbook versions are three kernels, one after the other, which pass everything through memory. They work on
// square tiles with four warps of 16 rows each, and softmax on one row per block.
constexpr int kNaiveTile = 64;
constexpr int kNaiveThreads = 128;

// Rows of P, and of ds, end with zeros up to a whole tile, so that the product needs no bounds on its columns.
constexpr long long naive_probability_stride(int k_len) { return round_up(k_len, kNaiveTile); }

constexpr int naive_scores_smem(const KernelConfig& c) {
  return 2 * tile_layout(kNaiveTile, padded_dim_qk(c), c.element).bytes();
}
constexpr int naive_product_smem(const KernelConfig& c) {
  return tile_layout(kNaiveTile, kNaiveTile, c.element).bytes() +
         tile_layout(kNaiveTile, padded_dim_v(c), c.element).bytes();
}

// Returns the shared memory of the kernels of gradients.
constexpr int naive_score_gradients_smem(const KernelConfig& c) {
  const int qk = tile_layout(kNaiveTile, padded_dim_qk(c), c.element).bytes(),
            v = tile_layout(kNaiveTile, padded_dim_v(c), c.element).bytes();
  return 2 * (qk > v ? qk : v);
}
constexpr int naive_gradients_smem(const KernelConfig& c) {
  return tile_layout(kNaiveTile, kNaiveTile, c.element).bytes() + naive_score_gradients_smem(c) / 2;
}

}  // namespace flashjit
