// What the warpgroups of the backward kernels have in common: turns, and scores kept transposed, a thread with two keys
// (lane / 4 and lane / 4 + 8 of its warp's 16) and two neighbouring queries of every eight.
#pragma once

#include "matrix.gen.cuh"
#include "templates/hopper_backward/work.cuh"

namespace flashjit {

constexpr int kScores = kTileQ / 2, kQuerySteps = kTileQ / 16;
constexpr float kExponentScale = config.scale * kLog2e;
#define kHidden (config.scale > 0 ? -kInfinity : kInfinity)  // a score that becomes 0
using Scores = float[kScores];
using Fragments = u32[kQuerySteps][4];

__device__ inline u32 lane_id() { return threadIdx.x % 32; }

// The warp is done with what this barrier stands for.
__device__ inline void release(u32 barrier) {
  if (lane_id() == 0) arrive(barrier);
}

// Warpgroups take turns at issuing products, the first one first, so that one exponentiates beside the products of the
// other. The second begins one turn more than it ends.
struct Turns {
  u32 warpgroup;
  __device__ void begin() const { sync_named(kTurnBarrier + warpgroup, 2 * kThreadsPerWarpgroup); }
  __device__ void end() const { arrive_named(kTurnBarrier + (warpgroup ^ 1), 2 * kThreadsPerWarpgroup); }
  __device__ void enter() const {
    if (warpgroup == 1) begin();
  }
  __device__ void leave() const {
    if (warpgroup == 0) end();
  }
};

// A fragment that, multiplied with row terms, gives each score the sum of its query's three.
struct Ones {
  u32 of[4];
  __device__ void set() {
    const u32 lane = lane_id() % 4, one = pack<config.element>(1.0f, 0.0f);
    of[0] = of[1] = lane == 0 ? one | one << 16 : lane == 1 ? one : 0;
    of[2] = of[3] = 0;
  }
};

// S = K Q^T of 64 keys, relative to the LSE; and dP = V dO^T, relative to D.
__device__ inline void issue_scores(Scores& s, const SharedMemory& shared, const Ones& ones, u32 keys, u32 stage) {
  multiply_terms(s, ones.of, rows_descriptor(shared.terms(stage)));
  multiply_scores(s, descriptor(shared.k() + keys * kPanelWidth), descriptor(shared.q(stage)));
}
__device__ inline void issue_dp(Scores& dp, const SharedMemory& shared, const Ones& ones, u32 keys, u32 stage) {
  multiply_terms(dp, ones.of, rows_descriptor(shared.terms(stage) + kTileQ * kTermBytes));
  multiply_dp(dp, descriptor(shared.v() + keys * kPanelWidth), descriptor(shared.d_o(stage)));
}

// Where the mask cuts: what a query does not see. `keys`: of the item's, the first of this warpgroup.
__device__ inline void hide(Scores& s, const KernelParams& params, const BackwardItem& item, u32 keys,
                            const Steps& at) {
  const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
  const int key = item.k_lo + static_cast<int>(keys + thread / 32 * 16 + thread % 32 / 4);
  const int query = at.tile * kTileQ + static_cast<int>(thread % 4) * 2;
  Sequence seq = item.seq;
  seq.h = at.head;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int k = key + i % 4 / 2 * 8, q = query + i / 4 * 8 + i % 2;
    if (k >= seq.k_len || !Variant::visible(params, seq, q, k)) s[i] = kHidden;
  }
}

__device__ inline void exponentiate(Scores& s) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) s[i] = exp2_approx(s[i] * kExponentScale);
}

template <Element element>
__device__ inline void convert(Fragments& fragments, const Scores& s) {
#pragma unroll
  for (int i = 0; i < kScores; i += 2) fragments[i / 8][i % 8 / 2] = pack<element>(s[i], s[i + 1]);
}

// dS = P dP.
__device__ inline void make_ds(Fragments& ds, const Scores& p, const Scores& dp) {
#pragma unroll
  for (int i = 0; i < kScores; i += 2) ds[i / 8][i % 8 / 2] = pack<config.element>(p[i] * dp[i], p[i + 1] * dp[i + 1]);
}

__device__ inline bool is_mixed(const BackwardItem& item, int tile) {
  return tile < item.full_first || tile > item.full_last;
}

}  // namespace flashjit
