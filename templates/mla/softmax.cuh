// Computes scores of a tile and their softmax, in the registers of a warpgroup product. A thread holds two rows (lane /
// 4 and lane / 4 + 8 of its warp's 16) and two neighbouring keys of every eight; register 4 j + 2 h + c is row h, key 8
// j + 2 (lane % 4) + c.
//
// Tiles belong to the two warpgroups by turns, and both add up P V of all tiles, so a row has the same reference for
// both. A warpgroup that raises it tells the other one, which scales its share of O before it adds that tile.
#pragma once

#include "templates/score_and_mask.cuh"
#include "templates/mla/work.cuh"
#include "templates/values/narrow_weights.cuh"

namespace flashjit {

constexpr int kScores = kMlaKeys / 2, kOutputs = half_columns(config) / 2;
using Scores = float[kScores];
using Output = float[kOutputs];
constexpr int kValueSums = kMlaProductColumns / 2;
using ValueSums = float[kValueSums];
constexpr int kWeightSteps = kMlaKeys * size_of(config.element) / kStepBytes;
// Words hold two weights, or four of 8 bits.
using Probabilities = u32[kWeightSteps][4];

// The largest sum of a thread's exponentials in a row of a tile with which the row's reference does not rise: P must
// fit into halves.
constexpr float kMostSum = 0x1p12f;

// Returns the row of the block that this thread's row h is.
__device__ inline int row_of_thread(int h) {
  const u32 thread = thread_number();
  return static_cast<int>(thread % 128 / 32 * 16 + thread % 32 / 4) + h * 8;
}

// The query of a row of the tile, as score and mask get it. Rows behind the last one are replaced by the last one.
struct Query {
  Sequence seq;
  int q;
};
__device__ inline Query query_of(const Segment& s, int row) {
  const Row at = row_at(s.seq, min(row, s.seq.q_len * kGroup - 1));
  Query query = {s.seq, at.q};
  query.seq.h = at.h;
  return query;
}

struct SoftmaxRows {
  float reference[2], sum[2], top[2];  // Sums and tops are those of this thread's own scores.
  float unit[2];                       // With products of 8 bits: the factors that make logits of products.
  Earlier earlier[2];                  // They are read at the end of an item.

  __device__ void clear() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      reference[h] = top[h] = -kInfinity;
      sum[h] = 0;
    }
  }
  // With products of 8 bits each row has scales.
  __device__ void begin_item(const KernelParams& params, const Segment& segment) {
    clear();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Query query = query_of(segment, first_row(segment) + row_of_thread(h));
      unit[h] = score_scale(params, query.seq, query.q);
    }
  }
  // Scores stay products until logits are needed, unless a score function has made logits of them already.
  static constexpr bool kProducts = kMultipliesNarrow && !config.has_score;
  __device__ float unit_of_scores(int h) const { return kProducts ? unit[h] : 1.0f; }
  // Scores are relative to the first key's score at first. Any reference that is not far below the largest score will
  // do. Finding the largest, and making P again, took 4 us, most of it for code that came from memory. A hidden first
  // key leaves no reference.
  __device__ void begin(const Scores& s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) reference[h] = __shfl_sync(0xffffffff, s[2 * h], lane_id() & ~3u) * unit_of_scores(h);
  }
};

// Returns whether some key of the tile is hidden from some query.
__device__ inline bool is_mixed(const Segment& segment, int tile) {
  const int k_lo = tile * kTileKv;
  return uniform(k_lo < segment.full_begin || k_lo + kTileKv > segment.full_end);
}

// Applies the score function, and sets scores of hidden keys to -infinity. The score function may load from a tensor
// that ends at the last key.
__device__ inline void apply_score_and_mask(Scores& s, const SoftmaxRows& rows, const KernelParams& params,
                                            const Segment& segment, int tile, bool mixed) {
  const int first = tile * kTileKv + static_cast<int>(lane_id()) % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Query query = query_of(segment, first_row(segment) + row_of_thread(h));
    if constexpr (!kScaleFolded && !SoftmaxRows::kProducts) {
      const float unit = kMultipliesNarrow ? rows.unit[h] : config.scale;
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * j + 2 * h + c];
          x = logit(params, query.seq, x * unit, query.q, first + 8 * j + c);
        }
    }
    if (!mixed) continue;
    // It has a bit for each key, where the mask is evaluated in a loop.
    u32 seen = 0;
    if constexpr (config.mask_is_long) seen = evaluate_mask(params, query.seq, query.q, first, kTileKv);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int k = first + 8 * j + c;
        bool hidden = k >= query.seq.k_len;
        if constexpr (config.mask_is_long) hidden = !(seen >> (2 * j + c) & 1);
        else if constexpr (config.has_mask) hidden = hidden || !Variant::visible(params, query.seq, query.q, k);
        if (hidden) s[4 * j + 2 * h + c] = -kInfinity;
      }
  }
}

__device__ inline void clear(Output& o) {
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) o[i] = 0;
}
__device__ inline void rescale(Output& o, const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) o[i] *= factor[i / 2 % 2];
}

// The rare part of a softmax step: references of the warp's rows rise to the maximum. Returns whether the references
// have been subtracted from the scores already: large references must be subtracted, exactly, before scores are scaled.
__device__ inline bool raise_references(Scores& s, SoftmaxRows& rows, const float (&maximum)[2], float (&factor)[2]) {
  bool large = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    factor[h] = raise_reference(rows.reference[h], rows.sum[h], maximum[h]);
    large |= is_large(rows.reference[h]);
  }
  if (!__any_sync(0xffffffff, large)) return false;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const float reference = rows.reference[i / 2 % 2];
    s[i] -= reference == -kInfinity ? 0.0f : reference;
  }
  return true;
}

// Makes P of a tile, as operand A, and the sums of this thread's rows. The accumulator of S has the layout of that
// operand. With 8 bits P is 2^kWeightExponent times the weight: the largest weight that it holds is then 2^3.8 times the
// reference's, and the smallest 2^-14 of it. Sums are those of rounded weights, so that O is V where one key has all of
// the weight; an LSE needs the exact ones.
constexpr int kWeightExponent = kMultipliesNarrow ? 5 : 0;
constexpr float kWeightUnit = 1.0f / (1 << kWeightExponent);
constexpr bool kSumsRounded = kMultipliesNarrow && config.lse == Lse::none;

// Returns the sum of four rounded weights. Two pairs are added as halves, which loses nothing that counts.
__device__ inline float sum_of_narrow(u32 weights) {
  const HalfPairs pairs = halves_of<Narrow::e4m3>(weights);
  const u32 both = add_halves(pairs.low, pairs.high);
  return float_from_f16(static_cast<u16>(both)) + float_from_f16(static_cast<u16>(both >> 16));
}

__device__ inline void exponentiate(const Scores& s, const float (&scale)[2], const float (&offset)[2],
                                    Probabilities& p, float (&sum)[2]) {
  const auto weight = [&](int i) { return exp2_approx(s[i] * scale[i / 2 % 2] - offset[i / 2 % 2]); };
  float sums[4] = {};
  if constexpr (kMultipliesNarrow) {
#pragma unroll
    for (int i = 0; i < kWeightSteps; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int first = first_score(i, j);
        const float x[4] = {weight(first), weight(first + 1), weight(first + 4), weight(first + 5)};
        p[i][j] = pack_e4m3(x[0], x[1], x[2], x[3]);
        sums[j % 2 * 2 + j / 2] += kSumsRounded ? sum_of_narrow(p[i][j]) : (x[0] + x[1]) + (x[2] + x[3]);
      }
  } else {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      const float a = weight(i), b = weight(i + 1);
      sums[i % 4] += a;
      sums[i % 4 + 1] += b;
      p[i / 8][i / 2 % 4] = pack<config.element>(a, b);
    }
  }
  sum[0] = sums[0] + sums[1];
  sum[1] = sums[2] + sums[3];
}
// Returns whether weights show that references are too low.
__device__ inline bool are_too_large(const Probabilities& p, const float (&sum)[2]) {
  if constexpr (kMultipliesNarrow) return has_large_narrow(p);
  return !(sum[0] <= kMostSum && sum[1] <= kMostSum);
}

__device__ inline void row_maxima(const Scores& s, float (&maximum)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float even = s[2 * h], odd = s[2 * h + 1];
#pragma unroll
    for (int i = 4 + 2 * h; i < kScores; i += 4) even = fmaxf(even, s[i]), odd = fmaxf(odd, s[i + 1]);
    maximum[h] = quad_max(fmaxf(even, odd));
  }
}

// Makes P relative to the earlier references, which will mostly do, so nothing has to wait for a maximum. Where sums
// show that references are too low, or there are none, they rise and P is made again. Returns whether they rose; O must
// then be scaled by `factor`.
__device__ inline bool softmax_step(Scores& s, Probabilities& p, SoftmaxRows& rows, float (&factor)[2]) {
  float sum[2], maximum[2];
  float scale[2] = {rows.unit_of_scores(0) * kLog2Scale, rows.unit_of_scores(1) * kLog2Scale};
  bool rose = false, subtracted = false;
  factor[0] = factor[1] = 1.0f;
  const auto make_logits = [&] {
    if constexpr (SoftmaxRows::kProducts) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] *= rows.unit[i / 2 % 2];
      scale[0] = scale[1] = kLog2Scale;
    }
  };
#pragma unroll 1
  while (true) {
    float offset[2];
    bool rise = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float reference = rows.reference[h];
      rise |= !(fabsf(reference) <= kLargeScore);  // This is true without a reference, too.
      offset[h] = (subtracted || reference == -kInfinity ? 0.0f : reference * kLog2Scale) - kWeightExponent;
    }
    exponentiate(s, scale, offset, p, sum);
    if (rose || !__any_sync(0xffffffff, rise || are_too_large(p, sum))) break;
    make_logits();
    row_maxima(s, maximum);
    subtracted = raise_references(s, rows, maximum, factor);
    rose = true;
  }
  if (config.max_logit && !rose) make_logits(), row_maxima(s, maximum);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (config.max_logit) rows.top[h] = fmaxf(rows.top[h], maximum[h]);
    rows.sum[h] += sum[h];
  }
  return rose;
}

// Stores P in the panel from which the other warpgroup multiplies.
__device__ inline void store_probabilities(u32 panel, const Probabilities& p) {
  const u32 lane = lane_id(), row = lane % 16, warp = thread_number() % 128 / 32;
  const u32 to = panel + (warp * 16 + row) * kPanelWidth, chunk = (row % 8 ^ lane / 16) * 16;
#pragma unroll
  for (int i = 0; i < kWeightSteps; ++i) store_matrices(to + (chunk ^ i * 32), p[i][0], p[i][1], p[i][2], p[i][3]);
}

}  // namespace flashjit
