// Masks for the scores of a warp: 16 rows of so many columns, as warpgroup products leave them. A thread has rows lane / 4 and
// lane / 4 + 8, and of every eight columns two. It would ask the mask for each of its scores; so the warp asks for one row
// after the other, and each lane for columns of its own, one of each 32: what depends on a column, and what is read there, is
// found once for all rows.
#pragma once

#include "templates/hopper/device.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr int kVotingRows = 16;

// Says how many of 128 columns that lie before column `end` are a thread's: as many bits of a word.
__device__ inline int columns_before(int end) {
  const int inside = min(max(end, 0), 128);
  return inside / 8 * 2 + min(inside % 8, 2);
}

// A lane's reads, of which another lane has those that are asked for.
template <int count, class Reads>
__device__ inline Reads reads_of_lane(const Reads& own, int lane) {
  Reads reads = {};
#pragma unroll
  for (int i = 0; i < count; ++i) reads.of[i] = __shfl_sync(0xffffffff, own.of[i], lane);
  return reads;
}

template <int columns>
struct RowVotes {
  static constexpr int kVotes = (columns + 31) / 32;
  u32 of[kVotes] = {};  // lane i has those on row i

  // The first column of a lane: such that a byte of 32 votes is what a thread has of 32 columns.
  __device__ static int first_column(u32 lane) { return static_cast<int>(lane / 2 % 4 * 8 + lane / 8 * 2 + lane % 2); }

  // row_at(i): whom to ask on row i. sees(j): does it see the lane's column of the 32 of number j?
  template <class RowAt>
  __device__ void take(u32 lane, const RowAt& row_at) {
#pragma unroll(Variant::kReadsAtPairs ? 1 : 4)  // what is read in here takes registers
    for (int i = 0; i < kVotingRows; ++i) {
      const auto sees = row_at(i);
#pragma unroll
      for (int j = 0; j < kVotes; ++j) {
        const u32 votes = __ballot_sync(0xffffffff, sees(j));
        if (static_cast<int>(lane) == i) of[j] = votes;
      }
    }
  }

  // Votes where reads alone say what a row sees; `own` are those of row lane % 16. Rows that read alike see alike, so the warp
  // asks once for each of them, and most warps have rows of one or two kinds.
  template <int count, class Reads, class Sees>
  __device__ void take_alike(const Reads& own, const Sees& sees) {
#pragma unroll 1
    for (u32 left = (1u << kVotingRows) - 1; left != 0;) {
      const Reads reads = reads_of_lane<count>(own, __ffs(static_cast<int>(left)) - 1);
      bool alike = true;
#pragma unroll
      for (int i = 0; i < count; ++i) alike &= own.of[i] == reads.of[i];
      left &= ~__ballot_sync(0xffffffff, alike);
#pragma unroll
      for (int j = 0; j < kVotes; ++j) {
        const u32 votes = __ballot_sync(0xffffffff, sees(reads, j));
        if (alike) of[j] = votes;
      }
    }
  }

  // Bit 2 j + c is column 8 j + c of a thread's row h, counted from its first, of the 128 columns of a word; those before
  // `begin`, and from `end` on, counted likewise, are none.
  __device__ u32 bits(u32 lane, int h, int word, int begin, int end) const {
    u32 all = 0;
#pragma unroll
    for (int j = 0; j < 4 && word * 4 + j < kVotes; ++j)
      all |= (__shfl_sync(0xffffffff, of[word * 4 + j], lane / 4 + 8 * h) >> lane % 4 * 8 & 0xff) << j * 8;
    const int first = columns_before(begin - word * 128);
    return all & bit_range(first, max(columns_before(end - word * 128) - first, 0));
  }
};

}  // namespace flashjit
