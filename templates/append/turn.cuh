// This file turns pieces of rows of Q, and of new rows of K, by their positions, if the spec has `rope`.
#pragma once

#include "templates/append/numbers.cuh"
#include "templates/append/rope.cuh"

namespace flashjit::appending {

// The data of a row that are loaded before the row's position is known: the position is the first thing that is waited
// for, while all the rest is under way.
struct Piece {
  uint4 own, partners;  // `partners` are the other columns of its pairs, with rope=half.
  u64 turns[kPieceColumns];
};

// With rope=half the partners lie half a rotation away.
__device__ inline uint4 load_partners(const RowElement* row, int column) {
  if constexpr (rope::kPairs % kPieceColumns == 0) {
    return load_piece<config.copy_bytes>(row + rope::partner_of(column));
  } else {
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < kPieceColumns; ++i) {
      const int c = column + i;
      if (rope::rotates(c)) words[i / 2] |= static_cast<u32>(row[rope::partner_of(c)]) << i % 2 * 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

__device__ inline Piece load_rotating(const RowElement* row, int column) {
  Piece piece = {load_piece<config.copy_bytes>(row + column), {}, {}};
  if (!rope::rotates(column)) return piece;
  if constexpr (rope::kHalf) piece.partners = load_partners(row, column);
  if constexpr (rope::kComputes) {
#pragma unroll
    for (int i = 0; i < kPieceColumns; ++i) {
      if (rope::rotates(column + i)) piece.turns[i] = rope::kTurns.of[rope::pair_of(column + i)];
    }
  }
  return piece;
}

// Returns the columns of a piece, which begins at `column`, turned by this position of a sequence.
__device__ inline Columns turned(const KernelParams& p, const Piece& piece, int column, int position) {
  Columns columns = columns_of(piece.own);
  if (!rope::rotates(column)) return columns;
  const Columns own = columns, partners = columns_of(piece.partners);
#pragma unroll
  for (int i = 0; i < kPieceColumns; ++i) {
    if (!rope::rotates(column + i)) continue;
    const rope::Angle angle = rope::angle_of(p, position, rope::pair_of(column + i), piece.turns[i]);
    const float partner = rope::kHalf ? partners.of[i] : own.of[i ^ 1];
    columns.of[i] = own.of[i] * angle.cos + (rope::is_first(column + i) ? -partner : partner) * angle.sin;
  }
  return columns;
}

// Returns the turned piece in Q's type.
__device__ inline uint4 rotated(const KernelParams& p, const Piece& piece, int column, int position) {
  return rope::rotates(column) ? piece_of(turned(p, piece, column, position)) : piece.own;
}

}  // namespace flashjit::appending
