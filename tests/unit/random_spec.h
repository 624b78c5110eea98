// Specs that are drawn, and what two that are the same have in common.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "compiler/spec/fields/outputs.h"
#include "compiler/spec/spec.h"

namespace flashjit {

inline void expect_equal(const AttentionSpec& a, const AttentionSpec& b, const std::string& text) {
  EXPECT_TRUE(a.operation == b.operation && a.dtype == b.dtype && a.kv_dtype == b.kv_dtype &&
              a.cache_format == b.cache_format && a.out_dtype == b.out_dtype && a.out_dq == b.out_dq &&
              a.out_dk == b.out_dk && a.out_dv == b.out_dv)
      << text;
  EXPECT_TRUE(a.d_qk == b.d_qk && a.d_v == b.d_v && a.heads_q == b.heads_q && a.heads_kv == b.heads_kv) << text;
  EXPECT_TRUE(a.layout == b.layout && a.page_size == b.page_size && a.alignment == b.alignment) << text;
  EXPECT_TRUE(a.mask_text == b.mask_text && a.score_text == b.score_text && a.declared == b.declared &&
              a.params == b.params)
      << text;
  EXPECT_EQ(static_cast<bool>(a.mask), static_cast<bool>(b.mask)) << text;
  EXPECT_EQ(static_cast<bool>(a.score), static_cast<bool>(b.score)) << text;
  if (a.mask && b.mask) {
    EXPECT_TRUE(same(a.mask, b.mask)) << text;
  }
  if (a.score && b.score) {
    EXPECT_TRUE(same(a.score, b.score)) << text;
  }
  EXPECT_TRUE(a.scale == b.scale && a.lse == b.lse && a.max_logit == b.max_logit && a.sink == b.sink &&
              a.k_lens == b.k_lens && a.v_in_k == b.v_in_k && a.v_transposed == b.v_transposed &&
              a.token_scales == b.token_scales && a.scale_block == b.scale_block && a.compute == b.compute &&
              a.rotate == b.rotate && a.linear_exp == b.linear_exp && a.dropout == b.dropout)
      << text;
  EXPECT_TRUE(a.grads == b.grads) << text;
  EXPECT_TRUE(a.append == b.append && a.rope == b.rope && a.rope_dims == b.rope_dims && a.rope_from == b.rope_from &&
              a.rope_base == b.rope_base)
      << text;
  EXPECT_TRUE(a.batch == b.batch && a.q_len == b.q_len && a.k_len == b.k_len) << text;
  EXPECT_TRUE(a.align_bytes == b.align_bytes && a.numerics == b.numerics) << text;
}

struct RandomSpec {
  std::mt19937_64 random;
  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }
  SizeBound bound() {
    const std::int64_t size = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(SizeBound::kLargest));
    return below(3) == 0 ? SizeBound{} : below(2) ? SizeBound{size, size} : SizeBound{0, size};
  }
  // With what quantize has of a spec.
  AttentionSpec rounding(const AttentionSpec& s) {
    AttentionSpec q;
    q.operation = Operation::Quantize;
    q.dtype = q.kv_dtype = s.dtype;
    set_out(q, usual_out(q));
    if (below(2)) q.out_dtype = Dtype::E5M2;
    q.rotate = below(2);
    q.d_qk = q.d_v = q.rotate ? 16 << below(5) : std::min(s.d_qk, 256);
    q.heads_q = q.heads_kv = s.heads_q;
    q.layout = s.layout;
    if (below(2)) q.scale_block = 64 * (1 + below(16));
    q.batch = s.batch;
    q.q_len = s.q_len;
    if (below(2)) draw_rope(q);
    q.align_bytes = std::max(s.align_bytes, size_of(s.dtype));
    q.numerics = s.numerics;
    return q;
  }
  // As it is, or with Q, K and V rounded first.
  AttentionSpec computed(AttentionSpec s) {
    const bool can =
        size_of(s.dtype) > 1 && s.kv_dtype == s.dtype && s.page_size == 0 && !s.append && !s.k_lens && !s.v_in_k;
    if (!can || below(2)) return s;
    s.compute = below(2) ? Dtype::E4M3 : Dtype::E5M2;
    if (below(2)) s.rotate = true, s.d_qk = 48 << below(3);
    s.linear_exp = below(2);
    const bool needs_blocks = s.layout == Layout::Packed && s.numerics == Numerics::BatchInvariant;
    if (needs_blocks || below(2)) s.scale_block = 64 * (1 + below(16));
    if (s.layout != Layout::Packed && below(2)) draw_rope(s);
    return s;
  }
  void draw_rope(AttentionSpec& s) {
    s.rope = below(2) ? Rope::half : Rope::interleaved;
    s.rope_dims = 2 * (1 + below(s.d_qk / 2));
    if (below(2)) s.rope_from = (s.d_qk - s.rope_dims) / 8 * 8;
    if (below(2)) s.rope_base = 1 + below(1000000) / 8.0;
  }
  AttentionSpec draw() {
    AttentionSpec s = drawn();
    if (below(8) == 0) return rounding(s);
    if (!is_backward(s)) return computed(s);
    if (!is_backward(s)) return s;
    if (s.v_in_k) s.out_dv = s.out_dk;  // what bwd has not
    s.cache_format = CacheFormat::elements;
    s.k_lens = s.max_logit = s.append = false;
    s.kv_dtype = s.dtype;
    s.scale_block = 0;
    s.page_size = 0;
    copy_rope(s, {});
    s.dlse = below(2);
    if (s.score_text == "alibi" && below(2)) s.grads.emplace_back("slope");
    if (s.sink && below(2)) s.grads.emplace_back("sink");
    return s;
  }
  AttentionSpec drawn() {
    constexpr Dtype kDtypes[] = {Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::E4M3, Dtype::E5M2, Dtype::I8};
    constexpr const char* kMasks[] = {"", "causal", "causal & window(128, 0)", "k <= q + 3 | k % 7 == 0", "!(k < 5)"};
    constexpr const char* kScores[] = {"", "softcap(30)", "alibi", "s + 0.5", "where(q < k, s, s * 2.0)"};
    AttentionSpec s;
    s.operation = below(2) ? Operation::Forward : Operation::Backward;
    s.dtype = kDtypes[below(5)];
    s.kv_dtype = below(2) ? s.dtype : kDtypes[below(6)];
    set_out(s, usual_out(s.dtype));
    for (const OutField& out : out_fields(s)) {
      if (below(2)) s.*out.dtype = kDtypes[below(5)];
    }
    s.d_qk = 8 * (1 + below(32));
    s.d_v = below(2) ? s.d_qk : 8 * (1 + below(32));
    s.v_in_k = s.d_v <= s.d_qk && below(3) == 0;
    if (s.v_in_k && below(2)) s.d_qk = 576, s.d_v = 8 * (1 + below(64));
    s.heads_kv = 1 + below(16);
    s.heads_q = s.heads_kv * (1 + below(8));
    if (s.v_in_k && s.d_qk == 576 && s.dtype == Dtype::BF16 && s.kv_dtype == s.dtype) {
      s.cache_format = CacheFormat::latent656;
      s.d_v = 512, s.heads_kv = 1;
    }
    s.layout = static_cast<Layout>(below(3));
    if (s.layout != Layout::Bhsd && below(3) == 0) s.page_size = 1 + below(512);
    s.k_lens = s.page_size > 0 || below(3) == 0;
    if (has_scaled_keys(s) && below(2)) {
      s.scale_block = 64 * (1 + below(16));
      if (s.page_size > 0) s.page_size = s.scale_block * (1 + below(3));
    }
    s.mask_text = kMasks[below(5)];
    s.score_text = kScores[below(5)];
    if (below(2)) s.scale = std::ldexp(static_cast<double>(random()) - 9e18, -60 - below(10));
    s.alignment = static_cast<Alignment>(below(2));
    s.lse = static_cast<Lse>(below(3));
    s.max_logit = below(2);
    s.sink = below(2);
    s.v_transposed = is_forward(s) && has_scaled_queries(s) && !s.v_in_k && s.page_size == 0 && below(2);
    s.linear_exp = has_scaled_queries(s) && below(2);
    s.append = s.alignment == Alignment::BottomRight && below(2) == 0;
    if (s.append && !has_latent_rows(s) && below(2) == 0) draw_rope(s);
    if (below(3) == 0) s.dropout = (2 + below(995)) / 1000.0;
    s.batch = bound();
    s.q_len = bound();
    s.k_len = bound();
    s.align_bytes =
        s.dtype == Dtype::F32 || s.kv_dtype == Dtype::F32 || has_latent_rows(s) ? 4 << below(3) : 2 << below(4);
    s.numerics = static_cast<Numerics>(below(3));
    return s;
  }
};

}  // namespace flashjit
