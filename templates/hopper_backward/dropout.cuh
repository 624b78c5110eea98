// Dropout of gradients. With M the mask over the share that is kept, and D as without dropout:
//   dV = (P o M)^T dO,  dS = P o (M o (dO V^T) - D)
// The factor of M is left to what is stored: dS is made of M without it and D over it. So dP is a product alone, with no
// row terms: what is dropped of it is 0, and D is not.
#pragma once

#include "templates/dropout.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// Which weights of 64 keys and a step's queries are kept.
constexpr int kQueryTiles = kTileQ / 16;
using Kept = KeptTile[1][kQueryTiles];

// Of the keys of the item from `keys` on. Nothing of it depends on scores: it is made while products run.
__device__ inline void draw(Kept& kept, const SharedMemory& shared, const BackwardItem& item, u32 keys,
                            const Steps& at) {
  const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
  const DropoutCalls<WeightRows::keys> calls = {load_dropout_key(shared.dropout_key()), static_cast<u32>(item.seq.b),
                                                static_cast<u32>(at.head), thread % 32};
  calls.draw(kept, (static_cast<u32>(item.k_lo) + keys) / 16 + thread / 32, at.tile * kQueryTiles);
}

// With 128 queries there are no registers for that when dS is made: P bears it in its sign then. (With a score function P is
// multiplied with a slope.)
constexpr bool kSignsTell = kDrops && kQueryTiles > 4 && !config.has_score;
__device__ inline void mark_dropped(float (&p)[kTileQ / 2], const Kept& kept) {
#pragma unroll
  for (int i = 0; i < kTileQ / 2; ++i) {
    const u32 mask = mask_of_weight<WeightRows::keys>(kept[0][i / 8], i % 8 / 2, i % 2);
    p[i] = __uint_as_float(__float_as_uint(p[i]) | (~mask & 0x80000000));
  }
}

// -D, over the factor, of this thread's two of a step's queries 8 i to 8 i + 7.
struct MinusD {
  float of[2];
};
__device__ inline MinusD read_minus_d(u32 terms, int i) {
  const u32 query = recompute(threadIdx.x) % 4 * 2 + i * 8;
  MinusD d;
  u32 first, second;
  if constexpr (kInClusters) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      load_shared_pair(first, second, terms + (query + c) * kTermBytes + kTermBytes / 2);
      d.of[c] = sum_of_parts(first, second);
    }
  } else {
    load_shared_pair(first, second, terms + kTileQ * kTermBytes + query * static_cast<u32>(sizeof(float)));
    d = {__uint_as_float(first), __uint_as_float(second)};
  }
  return d;
}

// What the P of a step are multiplied with: dP - D, where `dp` has that already if nothing is dropped. Four at a time, of
// two queries and two keys.
struct ByWeight {
  const float* dp;
  const Kept& kept;
  u32 terms;

  struct Four {
    const ByWeight& all;
    int first;
    MinusD minus_d;

    __device__ float times(int i, float p) const {
      const float dp = all.dp[first + i];
      if constexpr (!kDrops) return p * dp;
      // What is dropped of dP is 0 where dP is not finite, too.
      if constexpr (kSignsTell) return fabsf(p) * ((__float_as_uint(p) >> 31 ? 0.0f : dp) + minus_d.of[i % 2]);
      const int place = first + i;
      const u32 mask = mask_of_weight<WeightRows::keys>(all.kept[0][place / 8], place % 8 / 2, place % 2);
      return p * (keep(dp, mask) + minus_d.of[i % 2]);
    }
  };
  __device__ Four four(int first) const {
    Four four = {*this, first, {}};
    if constexpr (kDrops) four.minus_d = read_minus_d(terms, first / 4);
    return four;
  }
};

}  // namespace flashjit
