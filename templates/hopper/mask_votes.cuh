// Masks for the scores of a warp: 16 rows of columns, as warpgroup products leave them. A thread has rows lane / 4 and
// lane / 4 + 8, and two of every eight columns. Asking the mask for each of its scores would repeat work, so the warp
// asks for one row after the other, and each lane for columns of its own, one of each 32. The warp then computes once
// for all rows what depends on a column, and reads it once.
#pragma once

#include "templates/hopper/device.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr int kVotingRows = 16;

// Returns how many of 128 columns that lie before column `end` are a thread's: the columns before it are that many low
// bits of a word.
__device__ inline int columns_before(int end) {
  const int inside = min(max(end, 0), 128);
  return inside / 8 * 2 + min(inside % 8, 2);
}

// Returns what lane `lane` has read.
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
  u32 of[kVotes] = {};  // Lane i has the votes of row i.

  // Returns the first column of a lane. The order of lanes makes a byte of 32 votes hold the bits of one thread's
  // columns.
  __device__ static int first_column(u32 lane) { return static_cast<int>(lane / 2 % 4 * 8 + lane / 8 * 2 + lane % 2); }

  // row_at(i) returns whom to ask for row i, and its sees(j) whether the row sees the lane's column in block j of 32.
  template <class RowAt>
  __device__ void take(u32 lane, const RowAt& row_at) {
#pragma unroll(Variant::kReadsAtPairs ? 1 : 4)  // Values that are read in here take registers.
    for (int i = 0; i < kVotingRows; ++i) {
      const auto sees = row_at(i);
#pragma unroll
      for (int j = 0; j < kVotes; ++j) {
        const u32 votes = __ballot_sync(0xffffffff, sees(j));
        if (static_cast<int>(lane) == i) of[j] = votes;
      }
    }
  }

  // Takes votes where a row's reads alone determine what the row sees; `own` are the reads of row lane % 16. Rows with
  // equal reads see the same keys, so the warp asks once for each kind of row, and most warps have rows of one or two
  // kinds.
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

  // Returns the columns of a thread's row h among the 128 columns of a word: bit 2 j + c is column 8 j + c, counted
  // from the thread's first one. Bits of columns before `begin` and from `end` on are 0.
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
