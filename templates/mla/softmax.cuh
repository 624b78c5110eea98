// Scores of a tile and their softmax, on the fragments of a warpgroup product. A thread holds two rows (lane / 4 and
// lane / 4 + 8 of its warp's 16) and two neighbouring keys of every eight; register 4 j + 2 h + c is row h, key
// 8 j + 2 (lane % 4) + c.
//
// Tiles belong to the two warpgroups in turn, and both add up P V of all of them: so a row's reference is the same for
// both. Who raises it tells the other one, which scales its part of O before it adds that tile.
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
using Probabilities = u32[kWeightSteps][4];  // two to a word, or four of 8 bits

// The largest sum of a thread's exponentials in a row of a tile with which the row's reference does not rise: P must fit
// into halves.
constexpr float kMostSum = 0x1p12f;

// The row of the block that this thread's row h is.
__device__ inline int row_of_thread(int h) {
  const u32 thread = thread_number();
  return static_cast<int>(thread % 128 / 32 * 16 + thread % 32 / 4) + h * 8;
}

// Score and mask get these for a row of the tile. Rows behind the last are taken for the last.
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
  float reference[2], sum[2], top[2];  // sums and tops of this thread's own scores
  float unit[2];                       // of 8 bits: what makes logits of products
  Earlier earlier[2];                  // at the end of an item

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
  // Scores are products until something needs logits, and a score function has made these of them already.
  static constexpr bool kProducts = kMultipliesNarrow && !config.has_score;
  __device__ float unit_of_scores(int h) const { return kProducts ? unit[h] : 1.0f; }
  // Scores are relative to that of the first key at first: any that is not far below the largest will do, and to find that,
  // and make P again, took 4 us, most of it for code that came from memory. A hidden one leaves them as they are.
  __device__ void begin(const Scores& s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) reference[h] = __shfl_sync(0xffffffff, s[2 * h], lane_id() & ~3u) * unit_of_scores(h);
  }
};

// Is some key of the tile hidden from some query?
__device__ inline bool is_mixed(const Segment& segment, int tile) {
  const int k_lo = tile * kTileKv;
  return uniform(k_lo < segment.full_begin || k_lo + kTileKv > segment.full_end);
}

// The score function, then -infinity where a key is not visible. The score function may load from a tensor that ends at
// the last key.
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
    u32 seen = 0;  // a bit for each key, where the mask is evaluated in a loop
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

// The rare part of a softmax step: references of the warp's rows rise to the maximum. Returns whether the scores have had
// their reference subtracted already: of large ones it must be, exactly, before they are scaled.
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

// P of a tile, as operand A: the accumulator layout of S is that of the operand. And the sums of this thread's rows. With 8
// bits P is 2^kRaised times what it stands for: nothing is larger than 2^3.8 times its reference then, nor smaller than
// 2^-14 of it. Sums are those of weights as they have been rounded, so that O is V where one key has all of the weight;
// an LSE needs them as they are.
constexpr int kRaised = kMultipliesNarrow ? 5 : 0;
constexpr float kLowered = 1.0f / (1 << kRaised);
constexpr bool kSumsRounded = kMultipliesNarrow && config.lse == Lse::none;

// The sum of four weights as they have been rounded. Two of them are added as halves, which loses nothing that counts.
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
// Do weights show that references are too low?
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

// P relative to the references of before, which mostly will do: nothing has to wait for a maximum. Where sums say that they
// are too low, or there are none, references rise and P is made again. Returns whether they rose; then O must be scaled by
// `factor`.
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
      rise |= !(fabsf(reference) <= kLargeScore);  // none, too
      offset[h] = (subtracted || reference == -kInfinity ? 0.0f : reference * kLog2Scale) - kRaised;
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

// To the panel from which the other warpgroup multiplies.
__device__ inline void store_probabilities(u32 panel, const Probabilities& p) {
  const u32 lane = lane_id(), row = lane % 16, warp = thread_number() % 128 / 32;
  const u32 to = panel + (warp * 16 + row) * kPanelWidth, chunk = (row % 8 ^ lane / 16) * 16;
#pragma unroll
  for (int i = 0; i < kWeightSteps; ++i) store_matrices(to + (chunk ^ i * 32), p[i][0], p[i][1], p[i][2], p[i][3]);
}

}  // namespace flashjit
