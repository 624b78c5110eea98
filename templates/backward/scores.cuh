// The scores, P, and gradients of the scores that a warp of backward kernels has in registers, for its rows and columns of a
// tile. With `grads=` it also finds what the parameters of the score get of these gradients.
#pragma once

#include "templates/backward/prepare.cuh"
#include "templates/backward/work.cuh"
#include "templates/device.cuh"
#include "templates/dropout.cuh"
#include "templates/tile_operands.cuh"

namespace flashjit {

constexpr int kColumnGroups = column_groups(config), kWarpColumns = columns_of_warp(config);
constexpr int kNTiles = kWarpColumns / 8;  // The tiles of 8 columns of scores.
template <int tiles>
using Sums = float[kRowTiles][tiles][4];
using Scores = Sums<kNTiles>;

__device__ inline u32 lane_id() { return threadIdx.x % 32; }
__device__ inline u32 warp_id() { return threadIdx.x / 32; }
__device__ inline u32 column_group() { return warp_id() % kColumnGroups; }
// Return the first row of this warp, and the first column of its scores.
__device__ inline u32 warp_row() { return warp_id() / kColumnGroups * kRowsOfWarp; }
__device__ inline u32 warp_column() { return column_group() * kWarpColumns; }

// Calls `f` with the index in Sums of each number that a thread has.
template <int tiles, class F>
__device__ inline void for_each(F f) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(m, n, e);
}

// Computes scores = rows columns^T over all columns of the head.
template <int head_dim>
__device__ inline void multiply_rows(Scores& s, u32 rows, const TileLayout row_layout, u32 columns,
                                     const TileLayout column_layout) {
  for_each<kNTiles>([&](int m, int n, int e) { s[m][n][e] = 0; });
  const u32 lane = recompute(lane_id());
  const u32 row_lane = rows + row_layout.offset(warp_row() + lane % 16, lane / 16),
            column_lane = columns + column_layout.offset(warp_column() + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll 8
  for (int step = 0; step < head_dim / 16; ++step) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_matrices(a[m], along(row_lane, row_layout, step) + down(row_layout, m));
#pragma unroll
    for (int n = 0; n < kNTiles / 2; ++n) {
      u32 b[4];
      load_matrices(b, along(column_lane, column_layout, step) + down(column_layout, n));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma<config.element>(s[m][2 * n], a[m], b[0], b[1]);
        mma<config.element>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// The query and the key of an element of this thread.
template <Side side>
struct Coords {
  int q, k;
  __device__ Coords(int row, int column) : q(side == Side::keys ? column : row), k(side == Side::keys ? row : column) {}
  __device__ Coords moved(int rows, int columns) const {
    return side == Side::keys ? Coords(k + rows, q + columns) : Coords(q + rows, k + columns);
  }
};

// Returns the query and the key of this thread's first score of a tile.
template <Side side>
__device__ inline Coords<side> first_coords(int row_lo, int column_lo) {
  const u32 thread = recompute(threadIdx.x);
  const u32 warp = thread / 32, row = warp / kColumnGroups * kRowsOfWarp + thread % 32 / 4,
            column = warp % kColumnGroups * kWarpColumns + thread % 4 * 2;
  return {static_cast<int>(row_lo + row), static_cast<int>(column_lo + column)};
}

// With lists the queries of a tile are heads, which a score may depend on.
__device__ inline auto score_and_slope(const KernelParams& params, const Sequence& seq, float s, int q, int k) {
  if constexpr (kChosen) {
    Sequence own = seq;
    own.h += q;
    return Variant::score_and_slope(params, own, s, 0, k);
  } else {
    return Variant::score_and_slope(params, seq, s, q, k);
  }
}

// Turns products into logits, and sets `slope`, the derivative of each by scale q.k. Without a score function
// make_probabilities() applies the scale.
template <Side side>
__device__ inline void make_logits(Scores& s, Scores& slope, const KernelParams& params, const Sequence& seq,
                                   int row_lo, int column_lo) {
  const Coords<side> first = first_coords<side>(row_lo, column_lo);
  for_each<kNTiles>([&](int m, int n, int e) {
    // A tensor that the score reads may end where queries and keys do, so nothing is read behind these ends.
    const Coords<side> at = first.moved(m * 16 + e / 2 * 8, n * 8 + e % 2);
    const int q = min(at.q, seq.q_len - 1), k = min(at.k, seq.k_len - 1);
    const auto [score, by_s] = score_and_slope(params, seq, s[m][n][e] * config.scale, q, k);
    s[m][n][e] = score;
    slope[m][n][e] = by_s;
  });
}

// Sets scores to -infinity where the key is not visible to the query, or does not exist.
template <Side side>
__device__ inline void hide(Scores& s, const KernelParams& params, const Sequence& seq, int row_lo, int column_lo) {
  const Coords<side> first = first_coords<side>(row_lo, column_lo);
  const int q_len = seq.q_len, k_len = seq.k_len;
  for_each<kNTiles>([&](int m, int n, int e) {
    const Coords<side> at = first.moved(m * 16 + e / 2 * 8, n * 8 + e % 2);
    const bool outside = at.q >= q_len || at.k >= k_len;
    if (outside || (config.has_mask && !Variant::visible(params, seq, at.q, at.k))) s[m][n][e] = -kInfinity;
  });
}

// Where queries are rows, these are the facts of this thread's rows. Where queries are columns, facts are read where
// they are needed, two columns at a time.
template <Side side>
struct Facts {
  RowFacts of_rows[kRowTiles][2];
  u32 of_columns;

  __device__ void of_pair(RowFacts (&pair)[2], int n) const {
    if constexpr (side == Side::queries) return;
    const u32 thread = recompute(threadIdx.x), group = thread / 32 % kColumnGroups;
    const uint4 words =
        load_shared(of_columns + (group * kWarpColumns + n * 8 + thread % 4 * 2) * static_cast<u32>(sizeof(RowFacts)));
    pair[0] = {__uint_as_float(words.x), __uint_as_float(words.y)};
    pair[1] = {__uint_as_float(words.z), __uint_as_float(words.w)};
  }
  // Calls `f` with each score and the facts of its query.
  template <class F>
  __device__ void for_each_score(F f) const {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
      RowFacts pair[2] = {};
      of_pair(pair, n);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) f(m, n, e, side == Side::queries ? of_rows[m][e / 2] : pair[e % 2]);
    }
  }
};

// Turns logits, or products, into P.
template <Side side>
__device__ inline void make_probabilities(Scores& s, const Facts<side>& facts) {
  constexpr float kFactor = config.has_score ? kLog2e : config.scale * kLog2e;
  facts.for_each_score([&](int m, int n, int e, const RowFacts& of_query) {
    s[m][n][e] = exp2_approx(s[m][n][e] * kFactor - of_query.lse);
  });
}

// Holds which weights of a warp are kept.
struct DrawnWeights {
  TileNumbers tiles[kRowTiles][kNTiles / 2];

  template <Side side>
  static constexpr WeightRows kRows = side == Side::keys ? WeightRows::keys : WeightRows::queries;

  template <Side side>
  __device__ void draw(u32 key, const Sequence& seq, int row_lo, int column_lo) {
    const u32 thread = recompute(threadIdx.x), warp = thread / 32;
    const DropoutCalls<kRows<side>> calls = {load_dropout_key(key), static_cast<u32>(seq.b), static_cast<u32>(seq.h),
                                             thread % 32};
    const u32 row = static_cast<u32>(row_lo) + warp / kColumnGroups * kRowsOfWarp,
              column = static_cast<u32>(column_lo) + warp % kColumnGroups * kWarpColumns;
    calls.draw(tiles, row / 16, column / 16);
  }
  // Return the masks of a weight, and of two neighbouring ones.
  template <Side side>
  __device__ u32 of(int m, int n, int e) const {
    return mask_of_weight<kRows<side>, config.dropped>(tiles[m][n / 2], n % 2 * 2 + e / 2, e % 2);
  }
  template <Side side>
  __device__ u32 of_pair(int m, int n, int half) const {
    return mask_of_operand<kRows<side>, config.dropped>(tiles[m][n / 2], n % 2 * 2 + half);
  }
  template <Side side>
  __device__ void drop(Scores& s) const {
    for_each<kNTiles>([&](int m, int n, int e) { s[m][n][e] = keep(s[m][n][e], of<side>(m, n, e)); });
  }
};

// Turns dP into ds. Where keys may be hidden, nothing is added where P is 0, whatever dP is, because dP of hidden keys
// may be anything.
template <Side side>
__device__ inline void make_score_gradients(Scores& dp, const Scores& p, const Scores& slope, bool hidden,
                                            const Facts<side>& facts) {
  if constexpr (config.has_score) {
    facts.for_each_score([&](int m, int n, int e, const RowFacts& of_query) {
      const float ds = p[m][n][e] * (dp[m][n][e] - of_query.delta) * slope[m][n][e];
      dp[m][n][e] = p[m][n][e] == 0 ? 0.0f : ds;  // Scores hide keys in any tile.
    });
  } else {
    facts.for_each_score([&](int m, int n, int e, const RowFacts& of_query) {
      dp[m][n][e] = p[m][n][e] * (dp[m][n][e] - of_query.delta);
    });
    if (hidden) for_each<kNTiles>([&](int m, int n, int e) { dp[m][n][e] = p[m][n][e] == 0 ? 0.0f : dp[m][n][e]; });
  }
}

// A bit for each score of a thread is set if it is hidden.
struct HiddenScores {
  u32 words[(kRowTiles * kNTiles * 4 + 31) / 32] = {};
  static constexpr int number(int m, int n, int e) { return (m * kNTiles + n) * 4 + e; }
  __device__ void set(int i, bool hidden) { words[i / 32] |= static_cast<u32>(hidden) << i % 32; }
  __device__ bool operator[](int i) const { return words[i / 32] >> i % 32 & 1; }
};

// Turns products of scores and dP into P and ds, and adds their shares to gradients of parameters. All are made at
// once, because a derivative may need the score itself. `counts` is true in one of the blocks that make the same
// scores.
using OfParameters = ParameterSums<kRowTiles * 2>;
__device__ inline void make_all_gradients(Scores& p, Scores& ds, OfParameters& sums, const KernelParams& params,
                                          const BlockState& block, int column_lo, bool mixed,
                                          const Facts<Side::keys>& facts, bool counts) {
  const Coords<Side::keys> first = first_coords<Side::keys>(block.row_lo, column_lo);
  const Sequence& seq = block.seq;
  HiddenScores hidden;
  if (mixed) {
    for_each<kNTiles>([&](int m, int n, int e) {
      const Coords<Side::keys> at = first.moved(m * 16 + e / 2 * 8, n * 8 + e % 2);
      const bool outside = at.q >= seq.q_len || at.k >= seq.k_len;
      hidden.set(hidden.number(m, n, e), outside || (config.has_mask && !Variant::visible(params, seq, at.q, at.k)));
    });
  }
  facts.for_each_score([&](int m, int n, int e, const RowFacts& of_query) {
    const Coords<Side::keys> at = first.moved(m * 16 + e / 2 * 8, n * 8 + e % 2);
    float &of_p = p[m][n][e], &of_ds = ds[m][n][e];
    const auto d = Variant::score_and_derivatives(params, seq, of_p * config.scale, min(at.q, seq.q_len - 1),
                                                  min(at.k, seq.k_len - 1));
    of_p = hidden[hidden.number(m, n, e)] ? 0.0f : exp2_approx(d.score * kLog2e - of_query.lse);
    const float by_logit = of_p == 0 ? 0.0f : of_p * (of_ds - of_query.delta);
    // The slope at a key or query that does not exist may be no number.
    of_ds = by_logit == 0 ? 0.0f : by_logit * d.slope;
    // A tile without mask code makes numbers of rows behind the last key as well, which must not count.
    if (counts)
      sums.add(params, seq, at.q, at.k, m * 2 + e / 2, e % 2, at.k < seq.k_len ? by_logit * kDropoutFactor : 0.0f, d);
  });
}

}  // namespace flashjit
