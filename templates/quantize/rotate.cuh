// Rows of 16-bit elements in the registers of a warp, as numbers, which are rotated if the spec asks for it
// (rotation.h).
//
// Four lanes share a row, and each has four columns of every 16. These are a lane's share of an operand of mma.sync, so
// that one product with a small matrix of 1 and -1 mixes the columns of four lanes, exactly, and its result lies where
// its operand was. All other columns that are mixed are in registers of the same lane. No number goes through shared
// memory.
#pragma once

#include "templates/quantize/layout.h"
#include "templates/quantize/rotation.h"
#include "templates/words.cuh"

namespace flashjit {

constexpr int kGroups = round_up(config.head_dim_qk, 16) / 16;  // Groups have 16 columns, four of each lane.
// Where groups come in pairs, a lane's columns of both lie side by side, 16 bytes of them.
constexpr int kGroupsOfPiece = config.head_dim_qk % 32 == 0 ? 2 : 1;
constexpr int kPieces = kGroups / kGroupsOfPiece, kColumnsOfPiece = 4 * kGroupsOfPiece;

// Returns the first column of a piece that a lane has.
__device__ inline int column_of(int piece, int lane) {
  return piece * 16 * kGroupsOfPiece + lane % 4 * kColumnsOfPiece;
}
// Head dims are multiples of 8, so the last piece may be longer.
__device__ inline bool has_column(int column) { return config.head_dim_qk % 16 == 0 || column < config.head_dim_qk; }

// A lane's pieces of rows lane / 4 and lane / 4 + 8 of its warp.
using Piece = Words<2 * kColumnsOfPiece, config.copy_bytes>;
struct Raw {
  Piece of[2][kPieces];
};
struct Values {
  float of[2][kGroups][4];
};

// Returns where the pieces of this thread wait in shared memory.
__device__ inline Piece* waiting_piece(int row, int piece) {
  extern __shared__ __align__(16) char memory[];
  return reinterpret_cast<Piece*>(memory) + (row * kPieces + piece) * quantize_threads(config) + threadIdx.x;
}

// Calls visit(row, piece, where in x it begins, whether it exists).
template <class Visit>
__device__ inline void each_piece(const void* x, const Int64 (&rows)[2], const bool (&valid)[2], int lane,
                                  const Visit& visit) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = column_of(piece, lane);
      visit(r, piece, static_cast<const u16*>(x) + rows[r] + column, valid[r] && has_column(column));
    }
  }
}

__device__ inline Raw load_rows(const void* x, const Int64 (&rows)[2], const bool (&valid)[2], int lane) {
  Raw raw = {};
  each_piece(x, rows, valid, lane, [&](int r, int piece, const u16* from, bool there) {
    if (there) raw.of[r][piece].load(from);
  });
  return raw;
}

// These two functions load rows in two steps: they request them, and read them when they have arrived. A thread copies
// only what it reads itself, so no thread waits for another.
__device__ inline void ask_for_rows(const void* x, const Int64 (&rows)[2], const bool (&valid)[2], int lane) {
  constexpr int kBytes = Piece::kAccess;
  each_piece(x, rows, valid, lane, [&](int r, int piece, const u16* from, bool there) {
    const u32 to = shared_address(waiting_piece(r, piece));
#pragma unroll
    for (int at = 0; at < sizeof(Piece); at += kBytes) copy_async<kBytes>(to + at, from + at / 2, there);
  });
  commit_copies();
}
__device__ inline Raw rows_asked_for() {
  wait_copies<0>();
  Raw raw;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) raw.of[r][piece] = *waiting_piece(r, piece);
  }
  return raw;
}

__device__ inline float number_of(u16 bits) {
  return config.element == Element::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
}
__device__ inline float number_in(const Piece& piece, int column) {
  return number_of(static_cast<u16>(piece.words[column / 2] >> column % 2 * 16));
}
__device__ inline Values numbers_of(const Raw& raw) {
  Values v;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i)
      v.of[r][i / 4][i % 4] = number_in(raw.of[r][i / kColumnsOfPiece], i % kColumnsOfPiece);
  }
  return v;
}

// With 3 or 5 sections, four columns of a lane are mixed with others. Without a rotation there is one section.
constexpr int kSections = config.rotate ? rotation_sections(config.head_dim_qk) : 1;

// The matrix by which mma.sync multiplies 16 columns of a row. Its row 4 t + e belongs to element e of lane t, and so
// does its column 4 t + e. It has two halves of 8 columns, each of two words.
struct Mixer {
  u32 of[2][2];
};
__device__ inline Mixer mixer_of(int lane) {
  constexpr u32 kOne = config.element == Element::bf16 ? 0x3f80 : 0x3c00;
  Mixer mixer;
  const int from_lane = lane % 4, to_lane = lane / 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int to = 2 * half + lane / 4 % 2;
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      u32 both = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int from = 2 * word + i;
        const bool negative = (__popc(from_lane & to_lane) + (kSections == 1 ? __popc(from & to) : 0)) % 2 == 1;
        const u32 element = kSections == 1 || from == to ? kOne | (negative ? 0x8000u : 0u) : 0u;
        both |= element << 16 * i;
      }
      mixer.of[half][word] = both;
    }
  }
  return mixer;
}

// Returns the signs of two columns of a register, where the register has its own. Signs of a piece lie 16 bits apart,
// and begin at the lane's.
__device__ inline u32 signs_of(int group, int pair, int lane) {
  const int piece = group / kGroupsOfPiece, in_piece = group % kGroupsOfPiece * 2 + pair;
  const int first = piece * 16 * kGroupsOfPiece / 2 % 16;  // The first sign of the piece, in its word.
  const u32 of_lane = kRotationSigns[piece * 16 * kGroupsOfPiece / 32] >> lane % 4 * (kColumnsOfPiece / 2);
  return of_lane << (15 - first - in_piece) & 0x80008000;
}

// Mixes columns of a lane whose groups differ in a bit, as Sylvester's matrix has them.
__device__ inline void mix_groups(Values& v) {
  constexpr int kEach = kGroups / kSections;
#pragma unroll
  for (int step = 1; step < kEach; step *= 2) {
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      const int r = i / 4 / kGroups, group = i / 4 % kGroups, e = i % 4;
      if (group % kEach & step) continue;
      const float a = v.of[r][group][e], b = v.of[r][group + step][e];
      v.of[r][group][e] = a + b;
      v.of[r][group + step][e] = a - b;
    }
  }
}

// Mixes columns of a lane by Paley's matrix, whose rows consist of few different sums: three columns that follow each
// other (four for the order 20) have four (eight) sums by their signs, up to the sign of the whole. This takes 60
// additions instead of 132 (150 instead of 380).
__device__ inline void mix_sections(Values& v) {
  constexpr int kEach = kGroups / kSections, kOrder = 4 * kSections, kTogether = kSections == 3 ? 3 : 4;
  constexpr int kSums = 1 << (kTogether - 1), kRuns = kOrder / kTogether;
#pragma unroll
  for (int i = 0; i < 2 * kEach; ++i) {
    const auto column = [&](int j) -> float& { return v.of[i / kEach][j / 4 * kEach + i % kEach][j % 4]; };
    float sums[kRuns][kSums];  // Bit k tells that the column after the k-th is subtracted.
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      sums[run][0] = column(run * kTogether);
#pragma unroll
      for (int k = 0; k < kTogether - 1; ++k) {
        const float x = column(run * kTogether + k + 1);
#pragma unroll
        for (int sum = 0; sum < 1 << k; ++sum) {
          sums[run][sum + (1 << k)] = sums[run][sum] - x;
          sums[run][sum] += x;
        }
      }
    }
#pragma unroll
    for (int to = 0; to < kOrder; ++to) {
      float total = 0;
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const bool negative = is_negative_in_paley(kOrder, to, run * kTogether);
        int sum = 0;
#pragma unroll
        for (int k = 0; k < kTogether - 1; ++k)
          sum |= (is_negative_in_paley(kOrder, to, run * kTogether + k + 1) != negative) << k;
        total += negative ? -sums[run][sum] : sums[run][sum];
      }
      column(to) = total;
    }
  }
}

// Returns sqrt(d) times the rotated rows.
__device__ inline Values rotated(const Raw& raw, int lane) {
  const Mixer mixer = mixer_of(lane);
  Values v;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    u32 a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Piece& piece = raw.of[i % 2][group / kGroupsOfPiece];
      a[i] = piece.words[group % kGroupsOfPiece * 2 + i / 2] ^ signs_of(group, i / 2, lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float d[4] = {};
      mma<config.element>(d, a, mixer.of[half][0], mixer.of[half][1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) v.of[i / 2][group][2 * half + i % 2] = d[i];
    }
  }
  mix_groups(v);
  if constexpr (kSections > 1) mix_sections(v);
  return v;
}

}  // namespace flashjit
