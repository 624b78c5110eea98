// Sizes of the launch that appends. Host and device share them.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

constexpr int kAppendThreads = 128;

// A thread writes one piece, which 16 bytes of a row of 16-bit elements become.
constexpr int kPieceColumns = 8;

// Returns the pieces of a token: the rows of all query heads, if they are rotated, then the rows of K, then those of V.
constexpr int rotated_pieces(const KernelConfig& c) {
  return c.rope == Rope::none ? 0 : c.heads_q * (c.head_dim_qk / kPieceColumns);
}
constexpr int new_key_pieces(const KernelConfig& c) { return c.heads_kv * (c.head_dim_qk / kPieceColumns); }
constexpr int new_value_pieces(const KernelConfig& c) {
  return c.v_in_k ? 0 : c.heads_kv * (c.head_dim_v / kPieceColumns);
}
constexpr int append_pieces(const KernelConfig& c) {
  return rotated_pieces(c) + new_key_pieces(c) + new_value_pieces(c);
}

// Returns the elements of rotated rows of Q that one token takes.
constexpr int rotated_columns(const KernelConfig& c) { return c.rope == Rope::none ? 0 : c.heads_q * c.head_dim_qk; }

}  // namespace flashjit
