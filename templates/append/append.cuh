// The launch before the others of a spec with `append`. It writes the rows of new tokens into K and V, at the ends of
// their sequences, and with `rope` rotates them and copies Q, rotated, to where the other launches read it. The other
// launches know nothing of this. A thread has 16 bytes of a row: only the way to memory and back takes time here, once.
#pragma once

#include "templates/append/latents.cuh"
#include "templates/append/layout.h"
#include "templates/append/turn.cuh"
#include "templates/cache_elements.cuh"
#include "templates/kv_rows.cuh"

namespace flashjit::appending {

// ---- which piece ----

// Returns the sequence of a token. With packed sequences the block finds that of its first token together, and threads
// go on from there. A token belongs to none if the result is `batch`, or if it lies before the first sequence.
__device__ inline int sequence_of_token(const KernelParams& p, Int64 first_of_block, Int64 token) {
  if constexpr (kRows != Rows::packed) return static_cast<int>(token / p.q_len);
  int before = 0;  // Counts the sequences that end before the block's first token.
  for (int b = 0; b < p.batch; b += kAppendThreads) {
    const int mine = b + static_cast<int>(threadIdx.x);
    const int found = __syncthreads_count(mine < p.batch && p.offsets_q[mine + 1] <= first_of_block);
    before += found;
    if (found < kAppendThreads) break;
  }
  while (before < p.batch && p.offsets_q[before + 1] <= token) ++before;
  return before;
}

__device__ inline void store_piece(Cached* to, uint4 piece) { store_chunk<config.copy_bytes>(to, piece); }
__device__ inline void store_piece(Cached* to, uint2 piece) {
  if constexpr (config.copy_bytes >= 8) {
    *reinterpret_cast<uint2*>(to) = piece;
  } else if constexpr (config.copy_bytes == 4) {
    reinterpret_cast<u32*>(to)[0] = piece.x, reinterpret_cast<u32*>(to)[1] = piece.y;
  } else {
    u16* halves = reinterpret_cast<u16*>(to);
    halves[0] = static_cast<u16>(piece.x), halves[1] = static_cast<u16>(piece.x >> 16);
    halves[2] = static_cast<u16>(piece.y), halves[3] = static_cast<u16>(piece.y >> 16);
  }
}

// Stores a piece of a row of K or V, as K or V holds it, in the row of its key.
template <class T>
__device__ inline void append_piece(const KernelParams& p, const Sequence& seq, int position, const void* rows,
                                    const Strides& strides, int column, T piece) {
  const auto cache = key_rows(p, strides, static_cast<const Cached*>(rows) + key_begin(strides, seq), seq);
  if (!cache.has_row(position)) return;  // No other sequence's page is written.
  store_piece(const_cast<Cached*>(cache.row(position)) + column, piece);
}

// Returns the scale by which a new row is divided.
__device__ inline float new_scale(const KernelParams& p, const float* scales, const Strides& stride,
                                  const Sequence& seq, int position) {
  if constexpr (has_key_scales(config)) return key_scale(p, scales, stride, seq, position);
  else return scale_of(scales, stride, seq.b, seq.hk, 0);
}

__device__ inline void append_key(const KernelParams& p, const Sequence& seq, int position, const RowElement* row,
                                  int column) {
  if constexpr (has_latent_rows(config)) return append_latent(p, seq, position, row, column);
  const Piece piece = load_rotating(row, column);
  if (position < 0) return;  // The cache has no room for the row.
  const auto append = [&](auto held) { append_piece(p, seq, position, p.k, p.k_stride, column, held); };
  if constexpr (is_scaled(config)) {
    const float scale = new_scale(p, p.scale_k, p.scale_k_stride, seq, position);
    append(narrowed_piece<config.cache>(turned(p, piece, column, position), scale));
  } else {
    append(rotated(p, piece, column, position));
  }
}
__device__ inline void append_value(const KernelParams& p, const Sequence& seq, int position, const RowElement* row,
                                    int column) {
  const uint4 piece = load_piece<config.copy_bytes>(row + column);
  if (position < 0) return;
  const auto append = [&](auto held) { append_piece(p, seq, position, p.v, p.v_stride, column, held); };
  if constexpr (is_scaled(config))
    append(narrowed_piece<config.cache>(columns_of(piece), new_scale(p, p.scale_v, p.scale_v_stride, seq, position)));
  else append(piece);
}

// The origin of a piece of a row: its tensor, head and columns.
enum class Of { queries, keys, values };
struct Source {
  Of of;
  int head, column;
};
__device__ inline Source source_of(int piece) {
  constexpr int kQueries = rotated_pieces(config), kKeys = new_key_pieces(config);
  constexpr int kOfRow = config.head_dim_qk / kPieceColumns, kOfValue = config.head_dim_v / kPieceColumns;
  if (piece < kQueries) return {Of::queries, piece / kOfRow, piece % kOfRow * kPieceColumns};
  piece -= kQueries;
  if (piece < kKeys) return {Of::keys, piece / kOfRow, piece % kOfRow * kPieceColumns};
  piece -= kKeys;
  return {Of::values, piece / kOfValue, piece % kOfValue * kPieceColumns};
}

__device__ inline void write_rows(const KernelParams& p, void* rotated_q) {
  constexpr int kPieces = append_pieces(config);
  const Int64 first = static_cast<Int64>(blockIdx.x) * kAppendThreads;
  const int of_first = static_cast<int>(first % kPieces) + static_cast<int>(threadIdx.x);
  const Int64 token = first / kPieces + of_first / kPieces;
  const int b = sequence_of_token(p, first / kPieces, token);
  if (b >= p.batch) return;
  Sequence seq = sequence_of(p, b, 0);
  const int q = static_cast<int>(kRows == Rows::packed ? token - seq.q_token : token - static_cast<Int64>(b) * p.q_len);
  if (q < 0) return;
  const Source source = source_of(of_first % kPieces);
  const int head = source.head, column = source.column;
  const auto row = [&](const void* tensor, const Strides& strides) {
    return static_cast<const RowElement*>(tensor) + query_row(strides, seq, head, q);
  };
  const int position = seq.k_len - seq.q_len + q;
  if (source.of == Of::queries) {
    const Piece piece = load_rotating(row(p.q, p.q_stride), column);
    RowElement* to = static_cast<RowElement*>(rotated_q) + token * rotated_columns(config) + head * config.head_dim_qk;
    *reinterpret_cast<uint4*>(to + column) = rotated(p, piece, column, max(position, 0));
    return;
  }
  seq.hk = head;
  if (source.of == Of::keys) append_key(p, seq, position, row(p.k_new, p.k_new_stride), column);
  else append_value(p, seq, position, row(p.v_new, p.v_new_stride), column);
}

}  // namespace flashjit::appending
