// The config of one host kernel has sizes and layouts, which are computed once and used by the emitters and by the code
// that calls the kernel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "compiler/plan.h"
#include "templates/dropout.h"

namespace flashjit::host {

enum class Product {
  Fma,  // It takes fp32 vectors, and converts fp16 and bf16 inputs when it packs them.
  Dot,  // It takes pairs of bf16: vdpbf16ps.
  Amx,  // It takes tiles of 16 x 32 bf16: tdpbf16ps.
};

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Matrix products work on 32-bit words: one fp32, or two bf16 that are neighbours along the summed dimension. The
// right-hand matrix is packed into panels of `panel` columns: [columns / panel][words][panel].
struct HostConfig {
  Product product = Product::Fma;
  bool avx512 = false;
  int lanes = 8;      // The fp32 lanes of a vector.
  int pack = 1;       // The elements per word.
  int panel = 16;     // Two vectors.
  int row_block = 6;  // The rows that the micro-kernel keeps in registers.
  int tile_q = 0, tile_kv = 0;
  Dtype dtype = Dtype::F32, out_dtype = Dtype::F32;
  int d_qk = 0, d_v = 0;
  int words_qk = 0;  // The words of a row of Q and K, padded.
  int width_v = 0;   // The columns of V and O, padded to panels.
  int dropped = 0;   // It is that of KernelConfig.

  // Returns the words of a row of `d` elements that is summed over. AMX consumes 16 words per step.
  int words_of(int d) const {
    return static_cast<int>(round_up((d + pack - 1) / pack, product == Product::Amx ? 16 : 1));
  }

  // Row strides of the scratch matrices in words. One line of padding keeps rows out of each other's cache sets.
  int q_stride() const { return words_qk + 16; }
  int s_stride() const { return tile_kv + 16; }
  int p_stride() const { return tile_kv / pack + 16; }
  int o_stride() const { return width_v + 16; }
  std::int64_t rows() const { return round_up(tile_q, row_block); }

  // These functions lay out the scratch of one worker, in bytes. In the fp32 kernel P overwrites S.
  std::int64_t q_at() const { return 0; }
  std::int64_t s_at() const { return q_at() + round_up(rows() * q_stride() * 4, 64); }
  std::int64_t p_at() const { return pack == 1 ? s_at() : s_at() + round_up(rows() * s_stride() * 4, 64); }
  std::int64_t o_at() const { return p_at() + round_up(rows() * (pack == 1 ? s_stride() : p_stride()) * 4, 64); }
  std::int64_t m_at() const { return o_at() + round_up(rows() * o_stride() * 4, 64); }
  std::int64_t l_at() const { return m_at() + round_up(rows() * 4, 64); }
  std::int64_t ranges_at() const { return l_at() + round_up(rows() * lanes * 4, 64); }
  // Each block of rows has the first key that it may see and the end of these keys, as i64.
  static constexpr std::int64_t kRangeBytes = 16;
  std::int64_t kept_at() const { return ranges_at() + round_up(rows() / row_block * kRangeBytes, 64); }
  std::int64_t scratch_bytes() const { return round_up(kept_at() + kept_bytes(), 4096); }

  // A bit for each weight of a tile tells whether dropout keeps it (emit/dropout.h).
  std::int64_t kept_row_bytes() const { return kept_row_bytes(tile_kv); }
  std::int64_t kept_row_bytes(std::int64_t keys) const { return round_up(kKeptKeys + keys, 8 * lanes) / 8; }
  std::int64_t kept_bytes() const { return dropped == 0 ? 0 : kept_bytes(kept_row_bytes(), tile_q); }
  // Rows come in blocks, and the first one may lie anywhere in one. So may the first key.
  static constexpr std::int64_t kKeptRows = 16, kKeptKeys = 32;
  static std::int64_t kept_bytes(std::int64_t row_bytes, std::int64_t rows) {
    return (round_up(rows, kKeptRows) + kKeptRows) * row_bytes;
  }

  // These functions return the bytes of packed K and V of one sequence and KV head.
  std::int64_t padded_keys(std::int64_t keys) const { return round_up(keys, panel); }
  std::int64_t k_bytes(std::int64_t keys) const { return padded_keys(keys) * words_qk * 4; }
  std::int64_t v_panel_words(std::int64_t keys) const { return padded_keys(keys) / pack * panel; }
  std::int64_t v_bytes(std::int64_t keys) const { return v_panel_words(keys) * (width_v / panel) * 4; }
};

inline HostConfig config_of(const Plan& plan) {
  const Capabilities& can = plan.target.can;
  HostConfig c;
  // Elements of 8 bits are widened.
  c.dtype = has_scaled_queries(plan.spec) ? Dtype::F32 : plan.spec.dtype;
  c.out_dtype = plan.spec.out_dtype;
  c.d_qk = plan.spec.d_qk;
  c.d_v = plan.spec.d_v;
  c.dropped = plan.config.dropped;
  c.avx512 = can.avx512;
  if (c.dtype == Dtype::BF16 && can.amx_bf16) c.product = Product::Amx;
  if (c.dtype == Dtype::BF16 && !can.amx_bf16 && can.avx512_bf16) c.product = Product::Dot;
  c.lanes = c.avx512 ? 16 : 8;
  c.panel = 2 * c.lanes;
  c.pack = c.product == Product::Fma ? 1 : 2;
  c.words_qk = c.words_of(c.d_qk);
  c.width_v = static_cast<int>(round_up(c.d_v, c.panel));
  c.tile_q = plan.schedule.tile_q.value_or(64);
  c.row_block = c.product == Product::Amx ? 32 : c.avx512 ? 8 : 6;
  if (is_backward(plan.spec)) {
    c.tile_q = static_cast<int>(round_up(c.tile_q, c.row_block));
  } else if (c.product != Product::Amx) {
    // A block is no taller than the tile, so that one query does not cost as much as eight.
    c.row_block = std::min(c.row_block, c.tile_q);
  }
  c.tile_kv = static_cast<int>(round_up(plan.schedule.tile_kv.value_or(256), c.panel));
  return c;
}

// These are the arguments of a call of flashjit_tile, for one query tile of one head. Generated code reads them through
// offsetof.
struct TileCall {
  const void* params;  // KernelParams, which hold the run-time parameters of mask and score.
  const void* q;       // It begins with row q_lo.
  const void* k;       // K is packed.
  const void* v;       // V is packed.
  void* o;             // It begins with row q_lo.
  float* lse;          // It begins with element q_lo, if LSE is asked for.
  float* max_logit;
  char* scratch;
  std::int64_t q_token, o_token;  // Strides in elements.
  std::int64_t v_panel_words;
  const std::uint8_t* not_finite;  // By key, see PackCall; null if all of V is finite.
  const void* const* v_rows;       // By key: V as it is, or widened.
  std::int64_t b, h, hk, q_len, k_len;
  std::int64_t q_lo, rows;
  // The states of the tiles of keys for these queries, where a map is made (tile_map/tile_map.h).
  const std::uint8_t* tiles;
  float sink;
  float scale_k, scale_v;            // Scales of elements of 8 bits; scale_k contains that of Q.
  const float *scales_k, *scales_v;  // By key, if there are several; scale_k and scale_v do not contain them.
  FourWords key;                     // The key of dropout.
};

// A call may see these keys: outside of them it reads neither K nor V.
struct SeenKeys {
  std::int64_t begin, end;
};

// These are the arguments of a call of flashjit_pack_k or flashjit_pack_v, for `keys` keys from a panel's first key on.
struct PackCall {
  const void* const* rows;  // By key; rows of zeros fill up a whole panel.
  void* target;
  std::int64_t keys;
  std::int64_t v_panel_words;
  std::uint8_t* not_finite;  // V: 1 for keys with an infinity or NaN, for which zeros are packed; 0 for all others.
};

// These are the arguments of a call of a step of the textbook version, for one query row of one head.
struct NaiveCall {
  const void* params;
  const void* q;
  const void* const* k_rows;  // By key.
  const void* const* v_rows;
  void* o;
  float* scores;  // It has k_len floats.
  float* probabilities;
  float* lse;
  float* max_logit;
  std::int64_t b, h, hk, q_len, k_len, q_row;
  float sink;
  float scale_k, scale_v;  // Scales of elements of 8 bits; scale_k contains that of Q.
  FourWords key;           // The key of dropout.
};

using TileFunction = void (*)(const TileCall*);
using SeenKeysFunction = void (*)(const TileCall*, SeenKeys*);
using PackFunction = void (*)(const PackCall*);
using NaiveFunction = void (*)(const NaiveCall*);

}  // namespace flashjit::host
