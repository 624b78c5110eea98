// Dropout of gradients. With M the mask over the share that is kept, and D as without dropout:
//   dV = (P o M)^T dO,  dS = P o (M o (dO V^T) - D)
// The factor of M is left to what is stored: dS is made of M without it and D over it. So dP is a product alone, with no
// row terms: what is dropped of it is 0, and D is not.
#pragma once

#include "templates/dropout.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// These say which weights of 64 keys and a step's queries are kept.
constexpr int kQueryTiles = kTileQ / 16;
using Kept = TileNumbers[1][kQueryTiles];

// Draws for the keys of the item from `keys` on. The draw does not depend on scores, so it is made while products run.
__device__ inline void draw(Kept& kept, const SharedMemory& shared, const BackwardItem& item, u32 keys,
                            const Steps& at) {
  const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
  const DropoutCalls<WeightRows::keys> calls = {load_dropout_key(shared.dropout_key()), static_cast<u32>(item.seq.b),
                                                static_cast<u32>(at.head), thread % 32};
  calls.draw(kept, (static_cast<u32>(item.k_lo) + keys) / 16 + thread / 32, at.tile * kQueryTiles);
}

// With 128 queries there are no registers for that when dS is made: P bears it in its sign then. (With a score function P is
// multiplied with a slope.)
constexpr bool kSignsTell = signs_tell(config);
__device__ inline void mark_dropped(float (&p)[kTileQ / 2], u32 (&operand)[kQueryTiles][4], const Kept& kept) {
#pragma unroll
  for (int i = 0; i < kTileQ / 2; i += 2) {
    negate_dropped<WeightRows::keys>(kept[0][i / 8], i % 8 / 2, p[i], p[i + 1]);
    operand[i / 8][i % 8 / 2] = pack_positive<config.element>(p[i], p[i + 1]);
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
      d.of[c] = sum_of_split(first, second);
    }
  } else {
    load_shared_pair(first, second, terms + kTileQ * kTermBytes + query * static_cast<u32>(sizeof(float)));
    d = {__uint_as_float(first), __uint_as_float(second)};
  }
  return d;
}

// Multiplies the P of a step by dP - D, which `dp` has already if nothing is dropped. It takes four at a time, of two
// queries and two keys.
struct ByWeight {
  const float* dp;
  const Kept& kept;
  u32 terms;

  struct Four {
    const ByWeight& all;
    int first;
    MinusD minus_d;

    // P of weights i and i + 1, which are of one key and two queries, becomes that product. Dropped elements of dP are
    // left out, also if they are not finite.
    __device__ void multiply(int i, float& p, float& q) const {
      const int index = first + i;
      const float of_p = p, of_q = q, *dp = all.dp + index;
      if constexpr (!kDrops) {
        p *= dp[0], q *= dp[1];
      } else if constexpr (kSignsTell) {
        p = fabsf(of_p) * minus_d.of[0], q = fabsf(of_q) * minus_d.of[1];
        if (!(__float_as_uint(of_p) >> 31)) p = fmaf(of_p, dp[0], p);
        if (!(__float_as_uint(of_q) >> 31)) q = fmaf(of_q, dp[1], q);
      } else {
        p *= minus_d.of[0], q *= minus_d.of[1];
        add_kept_products<WeightRows::keys>(all.kept[0][index / 8], index % 8 / 2, p, q, of_p, of_q, dp[0], dp[1]);
      }
    }
  };
  __device__ Four four(int first) const {
    Four four = {*this, first, {}};
    if constexpr (kDrops) four.minus_d = read_minus_d(terms, first / 4);
    return four;
  }
};

}  // namespace flashjit
