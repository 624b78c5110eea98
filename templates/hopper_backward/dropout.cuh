// Dropout of gradients. M is the mask divided by the share of weights that is kept, and D is the same as without
// dropout:
//   dV = (P o M)^T dO,  dS = P o (M o (dO V^T) - D)
// The division is left to what is stored: dS is made with M undivided and with D multiplied by the share. So dP is a
// product alone, without row terms: a dropped element of dP is 0, but its D is not.
#pragma once

#include "templates/dropout.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// These types hold which weights of 64 keys and a step's queries are kept.
constexpr int kQueryTiles = kTileQ / 16;
using Kept = TileNumbers[1][kQueryTiles];

// Draws the weights for the item's keys from `keys` on. The draw does not depend on scores, so it is made while
// products run.
__device__ inline void draw(Kept& kept, const SharedMemory& shared, const BackwardItem& item, u32 keys,
                            const Steps& at) {
  const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
  const DropoutCalls<WeightRows::keys> calls = {load_dropout_key(shared.dropout_key()), static_cast<u32>(item.seq.b),
                                                static_cast<u32>(at.head), thread % 32};
  calls.draw(kept, (static_cast<u32>(item.k_lo) + keys) / 16 + thread / 32, at.tile * kQueryTiles);
}

// With 128 queries no registers hold the draw until dS is made, so P carries it in its sign. (With a score function it
// cannot, because P is multiplied by a slope.)
constexpr bool kSignsTell = signs_tell(config);
__device__ inline void mark_dropped(float (&p)[kTileQ / 2], u32 (&operand)[kQueryTiles][4], const Kept& kept) {
#pragma unroll
  for (int i = 0; i < kTileQ / 2; i += 2) {
    negate_dropped<WeightRows::keys>(kept[0][i / 8], i % 8 / 2, p[i], p[i + 1]);
    operand[i / 8][i % 8 / 2] = pack_positive<config.element>(p[i], p[i + 1]);
  }
}

// -D, times the share that is kept, of the two queries among 8 i to 8 i + 7 of a step that this thread has.
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

// Multiplies P of a step by dP - D; without dropout `dp` holds this difference already. Four weights are multiplied at
// a time, of two queries and two keys.
struct ByWeight {
  const float* dp;
  const Kept& kept;
  u32 terms;

  struct Four {
    const ByWeight& all;
    int first;
    MinusD minus_d;

    // Replaces P of weights i and i + 1, which belong to one key and two queries, by the product. Dropped elements of
    // dP are left out, even if they are not finite.
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
