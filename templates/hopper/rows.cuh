// Boxes of rows for TMA, at their coordinates in the dimensions of the tensor maps (kernel_params.h).
#pragma once

#include "templates/hopper/device.cuh"
#include "templates/hopper/layout.h"
#include "templates/sequence.cuh"

namespace flashjit {

constexpr bool kGroupedHeads = config.head_tiles == HeadTiles::grouped;

// This coordinate ends a packed sequence. Rows of the sequence lie at the end of a dimension of 2^30 rows, so that rows
// behind them are out of bounds (read as zeros) and not the next sequence. The dimensions after the head move this end
// to where the sequence ends in memory: first kSequenceEnd steps of minus a row (2^35 bytes minus a row, modulo 2^64),
// then start + length steps of a row.
constexpr int kSequenceEnd = 1 << 30;

// Returns the coordinate where one dimension covers everything that the dimensions before leave open. Its steps divide
// the strides of `outer` (a page, a batch index or a group of heads) and of a token, so that any strides are possible.
__device__ inline int end_of(const EndSteps& steps, int outer, int token) {
  return outer * steps.outer + token * steps.token;
}

// Copies rows of a page (or of a batch index of strided tensors) to shared memory, from `row` on. `left` of them belong
// to the sequence, and zeros follow.
__device__ inline void copy_ending_keys(u32 to, const TensorMap& map, const EndSteps& steps, u32 barrier, int hk,
                                        int column, int page, int row, int left) {
  copy_box(to, map, barrier, kEvictLast, column, kSequenceEnd - left, hk, end_of(steps, page, row + left),
           kSequenceEnd);
}

// Copies rows of K or V to shared memory, from key k on.
__device__ inline void copy_keys(u32 to, const TensorMap& map, u32 barrier, const Sequence& seq, int column, int k,
                                 u64 policy = kEvictLast) {
  if constexpr (kRows == Rows::packed) {
    copy_box(to, map, barrier, policy, column, kSequenceEnd - seq.k_len + k, seq.hk,
             static_cast<int>(seq.k_token) + seq.k_len, kSequenceEnd);
  } else {
    copy_box(to, map, barrier, policy, column, k, seq.hk, seq.b);
  }
}

// Copies rows of Q from query q on: those of a head, or those of the heads of the group, from head `first` on. (q is a
// reference: read before the rest of the work state, it would cost the producer of packed tensors registers.)
__device__ inline void copy_queries(u32 to, const TensorMap& map, const EndSteps& steps, u32 barrier,
                                    const Sequence& seq, int column, const int& q, u64 policy = kEvictFirst,
                                    int first = 0) {
  if constexpr (kGroupedHeads && kRows == Rows::packed) {
    copy_box(to, map, barrier, policy, column, first, kSequenceEnd - seq.q_len + q,
             end_of(steps, seq.hk, static_cast<int>(seq.q_token) + seq.q_len), kSequenceEnd);
  } else if constexpr (kGroupedHeads) {
    copy_box(to, map, barrier, policy, column, first, q, seq.hk, seq.b);
  } else if constexpr (kRows == Rows::packed) {
    copy_box(to, map, barrier, policy, column, kSequenceEnd - seq.q_len + q, seq.h,
             static_cast<int>(seq.q_token) + seq.q_len, kSequenceEnd);
  } else {
    copy_box(to, map, barrier, policy, column, q, seq.h, seq.b);
  }
}

// Stores O from shared memory, with the same coordinates that copy_queries() has for Q.
__device__ inline void store_queries(const TensorMap& map, const EndSteps& steps, u32 from, const Sequence& seq,
                                     int column, int q) {
  if constexpr (kGroupedHeads && kRows == Rows::packed) {
    store_box(map, from, column, 0, kSequenceEnd - seq.q_len + q,
              end_of(steps, seq.hk, static_cast<int>(seq.q_token) + seq.q_len), kSequenceEnd);
  } else if constexpr (kGroupedHeads) {
    store_box(map, from, column, 0, q, seq.hk, seq.b);
  } else if constexpr (kRows == Rows::packed) {
    store_box(map, from, column, kSequenceEnd - seq.q_len + q, seq.h, static_cast<int>(seq.q_token) + seq.q_len,
              kSequenceEnd);
  } else {
    store_box(map, from, column, q, seq.h, seq.b);
  }
}

}  // namespace flashjit
