// Turns rows in the registers of a warp by their positions (`rope`), before anything else is done with them, and makes
// them 16 bits again, as the instruction that rotates takes them.
//
// Both columns of a pair are in one lane where they are neighbours, and where they are a multiple of a piece apart, as
// with rope=half(64), half(128) and half(256). Otherwise a lane reads the other columns again, from L1.
#pragma once

#include "templates/quantize/rotate.cuh"
#include "templates/append/rope.cuh"

namespace flashjit {

// Numbers of a lane's columns of a piece.
struct Columns {
  float of[kColumnsOfPiece];
};
struct Angles {
  float cos[kColumnsOfPiece], sin[kColumnsOfPiece];
};

constexpr int kPieceWidth = 16 * kGroupsOfPiece;
constexpr bool kPairsMeet = rope::kHalf && rope::kPairs % kPieceWidth == 0 && rope::kFrom % kPieceWidth == 0;
// Elsewhere registers do not suffice, nor do they where no instruction rounds to 8 bits.
#if __CUDA_ARCH__ >= 890
constexpr bool kAnglesAtOnce = kPairsMeet;
#else
constexpr bool kAnglesAtOnce = false;
#endif
// True if none or all of a lane's columns of a piece turn, and all as first or all as second ones.
constexpr bool kTurnTogether = (rope::kHalf ? rope::kPairs : rope::kDims) % kColumnsOfPiece == 0;

__device__ inline Columns columns_of(const Piece& piece) {
  Columns columns;
#pragma unroll
  for (int i = 0; i < kColumnsOfPiece; ++i) columns.of[i] = number_in(piece, i);
  return columns;
}

// Returns the angles of `pairs` pairs that follow each other.
template <int pairs>
__device__ inline Angles angles_of(const KernelParams& p, int position, int first) {
  Angles angles;
  if constexpr (rope::kComputes) {
#pragma unroll
    for (int i = 0; i < pairs; ++i) {
      const rope::Angle angle = rope::angle_of(p, position, first + i, rope::kTurns.of[first + i]);
      angles.cos[i] = angle.cos, angles.sin[i] = angle.sin;
    }
  } else {
    const Int64 at = static_cast<Int64>(position) * rope::kPairs + first;
    Words<4 * pairs, rope_table_bytes(rope::kDims, config.copy_bytes)> cos, sin;
    cos.load(p.cos + at);
    sin.load(p.sin + at);
#pragma unroll
    for (int i = 0; i < pairs; ++i)
      angles.cos[i] = __uint_as_float(cos.words[i]), angles.sin[i] = __uint_as_float(sin.words[i]);
  }
  return angles;
}

// Returns the angles of a lane's columns. Columns that do not turn have the angle 0.
__device__ inline Angles angles_at(const KernelParams& p, int position, int column) {
  if constexpr (kTurnTogether && rope::kHalf) {
    return angles_of<kColumnsOfPiece>(p, position, rope::pair_of(column));
  } else if constexpr (kTurnTogether) {
    const Angles of_pairs = angles_of<kColumnsOfPiece / 2>(p, position, rope::pair_of(column));
    Angles angles;
#pragma unroll
    for (int i = 0; i < kColumnsOfPiece; ++i) angles.cos[i] = of_pairs.cos[i / 2], angles.sin[i] = of_pairs.sin[i / 2];
    return angles;
  } else {
    Angles angles;
#pragma unroll
    for (int i = 0; i < kColumnsOfPiece; ++i) {
      const int pair = rope::pair_of(column + i);
      rope::Angle angle = {1, 0};
      if (rope::rotates(column + i))
        angle = rope::angle_of(p, position, pair, rope::kComputes ? rope::kTurns.of[pair] : 0);
      angles.cos[i] = angle.cos, angles.sin[i] = angle.sin;
    }
    return angles;
  }
}

// Returns the other columns of the pairs, or zeros for a row that does not exist.
__device__ inline Columns partners_at(const u16* row, bool valid, const Columns& own, int column) {
  Columns partners = {};
  if constexpr (!rope::kHalf) {
#pragma unroll
    for (int i = 0; i < kColumnsOfPiece; ++i) partners.of[i] = rope::rotates(column + i) ? own.of[i ^ 1] : 0;
  } else if constexpr (kTurnTogether) {
    Piece piece = {};
    if (valid) piece.load(row + rope::partner_of(column));
    partners = columns_of(piece);
  } else {
#pragma unroll
    for (int i = 0; i < kColumnsOfPiece; ++i) {
      const int c = column + i;
      if (valid && rope::rotates(c)) partners.of[i] = number_of(row[rope::partner_of(c)]);
    }
  }
  return partners;
}

__device__ inline float turned(float own, float partner, float cos, float sin, bool is_first) {
  return own * cos + (is_first ? -partner : partner) * sin;
}
// Returns the columns as elements.
__device__ inline Piece piece_of(const Columns& c) {
  Piece piece;
#pragma unroll
  for (int i = 0; i < kColumnsOfPiece / 2; ++i) piece.words[i] = pack<config.element>(c.of[2 * i], c.of[2 * i + 1]);
  return piece;
}

// Turns a lane's piece together with the piece that has the other columns of its pairs.
__device__ inline void turn_pieces(const Angles& angles, Piece& first, Piece& second) {
  const Columns x = columns_of(first), y = columns_of(second);
  Columns a, b;
#pragma unroll
  for (int i = 0; i < kColumnsOfPiece; ++i) {
    a.of[i] = turned(x.of[i], y.of[i], angles.cos[i], angles.sin[i], true);
    b.of[i] = turned(y.of[i], x.of[i], angles.cos[i], angles.sin[i], false);
  }
  first = piece_of(a);
  second = piece_of(b);
}
// Returns whether some column of a piece, of whichever lane, turns.
__device__ inline bool turns_any(int piece) {
  return (piece + 1) * kPieceWidth > rope::kFrom && piece * kPieceWidth < rope::kFrom + rope::kDims;
}
__device__ inline void turn_piece(const KernelParams& p, const u16* row, bool valid, int position, int column,
                                  Piece& piece) {
  const Columns own = columns_of(piece), partners = partners_at(row, valid, own, column);
  const Angles angles = angles_at(p, position, column);
  Columns columns;
#pragma unroll
  for (int i = 0; i < kColumnsOfPiece; ++i)
    columns.of[i] = turned(own.of[i], partners.of[i], angles.cos[i], angles.sin[i], rope::is_first(column + i));
  piece = piece_of(columns);
}

// `rows` are the begins of rows in x. Rows that do not exist have a position, too, and stay without numbers: without
// branches around them all angles are loaded at once, which is faster [M92].
__device__ inline void turn(const KernelParams& p, const Int64 (&rows)[2], const bool (&valid)[2],
                            const int (&positions)[2], int lane, Raw& raw) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int column = column_of(piece, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!kAnglesAtOnce && !valid[r]) continue;
      if constexpr (kPairsMeet) {
        constexpr int kApart = rope::kPairs / kPieceWidth, kFirst = rope::kFrom / kPieceWidth;
        if (piece < kFirst || piece >= kFirst + kApart) continue;
        const Angles angles = angles_of<kColumnsOfPiece>(p, positions[r], rope::pair_of(column));
        turn_pieces(angles, raw.of[r][piece], raw.of[r][(piece + kApart) % kPieces]);
      } else if (turns_any(piece)) {
        const bool whole = rope::rotates(piece * kPieceWidth) && rope::rotates((piece + 1) * kPieceWidth - 1);
        const u16* const row = static_cast<const u16*>(p.x) + rows[r];
        if (whole || rope::rotates(column)) turn_piece(p, row, valid[r], positions[r], column, raw.of[r][piece]);
      }
    }
  }
}

}  // namespace flashjit
