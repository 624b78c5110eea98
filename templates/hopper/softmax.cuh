// Turns logits into probabilities.
#pragma once

#include "templates/hopper/narrow.cuh"

namespace flashjit {

// References of earlier tiles may turn out too low for a later one. They rise then, and what a row has summed up falls.
// fp16 ends at 2^16, which wide logits reach in every layer, so every step checks whether its tile has probabilities
// beyond kLargestP. bf16 has the range of fp32, so sums are checked after every few steps, outside of the main loop,
// where four more instructions would cost time [M79].
constexpr bool kReferenceRises = config.reference == Reference::first;
constexpr bool kChecksEachTile = kReferenceRises && config.element != Element::bf16;
constexpr bool kChecksEarlierSums = kReferenceRises && !kChecksEachTile;
constexpr float kLargestP = kNarrow ? 448 : 0x1p15f;
// A large sum leaves room below 2^100, because four steps may add to a sum before the next check.
constexpr float kLargeSum = 0x1p50f;
constexpr int kTilesBetweenChecks = 4;  // Sums are checked after this number of steps of the main loop.

// P is 2^kWeightExponent times the probability, and the row sum is divided by the same factor. e4m3 ends at 448 and at 2^-9.
// Relative to a maximum of all tiles so far, no probability is larger than 1. Relative to an older maximum, a row may
// rise by 2^3.8 before its reference must rise, and with interpolated weights by 2^2.8: interpolated weights below 2^-6
// are too small, so they are raised by 2^6 instead of 2^5, and not by 2^7, which is slower [M80]. 16 bits begin lower,
// so that fewer rows rise at all: far fewer in bf16, which loses nothing but V below 2^-110, and somewhat fewer in
// fp16. In fp16 this costs accuracy in a row where one key has half of the weight and 100,000 others share the rest, as
// their weights are below 2^-14; 2^-6 would make that row's error larger. Lowering fp16 by more than 2^-2 was slower
// where logits fall steeply [M81]. Capped scores rise little, and ptxas makes slower kernels of lowered ones [M82].
constexpr int kWeightExponent = kNarrow                                    ? (config.reference == Reference::tile ? 8
                                                                              : kLinear                           ? 6
                                                                                                                  : 5)
                                : !kReferenceRises || config.score_cap > 0 ? 0
                                : kChecksEarlierSums                       ? -12
                                                                           : -2;
constexpr float kWeightUnit = kWeightExponent > 0 ? 1.0f / (1 << kWeightExponent) : 1 << -kWeightExponent;

// A key far above the rest that comes after its row's reference was chosen has a weight other than 1, and P holds it
// rounded to 8 bits. A thread then adds that weight and next to nothing to the sum. The sum is rounded in the same way,
// so that O is that key's V. Sums of many weights lose only 2^-9 of a thread's share, up or down. An LSE needs exact
// sums.
constexpr bool kSumsRounded = kChecksEarlierSums && config.hopper.row_sum == RowSum::adds && config.lse == Lse::none;

// A row sum beyond this value means that the row's reference did not rise in time: a few tiles raised the sum by 2^70.
// V may be as large as 2^26 before O overflows, which is checked as well.
constexpr float kLargestSum = 0x1p100f;

struct RowStates {
  float reference[2];  // It is in units of the scores, before they are scaled to powers of two.
  float sum[2];        // This thread's share of the row's sum.
  float top[2];        // The true maximum, where it is an output.
  bool polynomial;     // True if quick steps take tanh of capped scores by its polynomial.
  // kChecksEachTile: true if some P of this thread in the last tile may be beyond kLargestP.
  bool large;

  __device__ void clear() { *this = {{-kInfinity, -kInfinity}, {0, 0}, {-kInfinity, -kInfinity}, false, false}; }

  // Adds a tile's sums to those of all tiles; `tile` has two sums for each row.
  __device__ void add(const float (&tile)[4], bool reference_is_maximum) {
    if constexpr (kSumInMatrix) return;
    float of_row[2] = {tile[0] + tile[1], tile[2] + tile[3]};
    if constexpr (kNarrow) large = fmaxf(fmaxf(tile[0], tile[1]), fmaxf(tile[2], tile[3])) > kLargestP;
    else if constexpr (kChecksEachTile) large = of_row[0] > kLargestP || of_row[1] > kLargestP;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (kSumsRounded && !reference_is_maximum) {
        // The rounding takes integers: converting makes ptxas arrange the main loop otherwise, with 5 instructions
        // more.
        of_row[h] = __uint_as_float((__float_as_uint(of_row[h]) + 0x8000) & 0xffff0000);
      }
      sum[h] += of_row[h];
    }
  }
};

// True for capped scores, such as softcap's. Quick steps take tanh by a polynomial without checking how large its
// arguments are, if the rows so far suggest that they are small. A row's sum shows in the end whether they were.
constexpr bool kCapped = config.score_cap > 0 && kLogitsInPass;
constexpr float kLargestCapped = config.score_cap * SmallArguments::kValueThere;
constexpr CappedExponent kCappedExponent = {config.score_cap * kLog2e, config.score_factor};

// Returns whether the sums would pass if all keys were like those of the first tile.
__device__ inline bool suggests_small_arguments(const RowStates& rows, int k_len) {
  const float largest = fmaxf(rows.reference[0], rows.reference[1]),
              smallest = fminf(rows.reference[0], rows.reference[1]);
  const bool small =
      largest + log2_approx(static_cast<float>(k_len)) * kLn2 < kLargestCapped && smallest > -0.5f * kLargestCapped;
  return __all_sync(0xffffffff, small);
}

// Returns whether all arguments of this row were small, or too few to matter. `reference` is in natural units. A score
// above kLargestCapped has come out higher still, and the sum is above it as well. Scores below -kLargestCapped have
// come out lower than they are: their exponentials are off by at most their true values, or from a cap of 23 on by
// those times cap * x^7 / 18 (the polynomial minus tanh is at most x^7 / 18; e^(-cap tanh x) cap x^7 falls from x =
// 0.35 on). All keys of a row together must stay below 2^-12 of the sum.
__device__ inline bool arguments_were_small(float reference, float sum, int k_len) {
  constexpr float kMostOff = config.score_cap < 23 ? 1.0f : config.score_cap * 3.6e-5f;
  const float missed = static_cast<float>(k_len) * kMostOff * exp2_approx((-kLargestCapped - reference) * kLog2e);
  return sum < exp2_approx((kLargestCapped - reference) * kLog2e) && missed * 0x1p12f <= sum;
}

// Finds the largest score of each row in the groups that some row sees.
__device__ inline void row_maxima(const Scores& s, const Columns& columns, float (&maximum)[2]) {
  // Two chains of dependent instructions compute each row's maximum.
  float m[4] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
#pragma unroll
  for (int first = 0; first < kScores; first += kGroupScores) {
    if (!columns.sees_group(first / kGroupScores)) continue;
#pragma unroll
    for (int i = first; i < kScores && i < first + kGroupScores; ++i) m[i % 4] = fmaxf(m[i % 4], s[i]);
  }
  maximum[0] = fmaxf(m[0], m[1]);
  maximum[1] = fmaxf(m[2], m[3]);
}

// Raises references to the maximum. `factor` is what sums and O must be multiplied by.
__device__ inline void raise_references(RowStates& rows, const float (&maximum)[2], float (&factor)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float reference = fmaxf(rows.reference[h], maximum[h]);
    // A row that has seen no key has nothing to multiply, and (-inf) - (-inf) must not become NaN.
    factor[h] = rows.reference[h] == -kInfinity ? 1.0f : exp2_approx((rows.reference[h] - reference) * kLog2Scale);
    rows.reference[h] = reference;
    if constexpr (!kSumsApart) rows.sum[h] *= factor[h];
  }
}

template <int n>
__device__ inline void rescale(float (&o)[n], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < n; ++i) o[i] *= factor[i / 2 % 2];
}
// Returns whether some reference of the warp has risen. In most tiles none does.
__device__ inline bool rose(const float (&factor)[2]) {
  return __any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f);
}

// These functions turn scores into exponents, and exponents into weights.
constexpr float kExponentScale = kLog2Scale * kExponentUnit;
__device__ inline float weight(float exponent) { return kLinear ? exponent : exp2_approx(exponent); }

// Returns the offset that the main loop subtracts from a row's exponents. One operation computes it. ptxas fuses a
// product and a difference as well, but then computes half of a tile's exponents before the first exponential, which is
// slower [M83]. This was not tried for 8 bits.
__device__ inline float offset_of(float reference) {
  if constexpr (kLinear) return reference * kExponentScale - (kWeightExponent + kExponentOfBits) * kExponentUnit;
  return kWeightExponent < 0 ? fmaf(reference, kLog2Scale, -kWeightExponent) : reference * kLog2Scale - kWeightExponent;
}

// Turns scores into probabilities, `power(i, s[i])`, and adds them to the sums. Groups that no row of the warp sees get
// 0. `halfway` is called with the sum of the first half, when about half of the scores are done.
template <class Power, class Halfway>
__device__ inline void exponentiate(Scores& s, RowStates& rows, const Columns& columns, bool reference_is_maximum,
                                    const Power& power, const Halfway& halfway) {
  float sum[4] = {};
#pragma unroll
  for (int first = 0; first < kScores; first += kGroupScores) {
    if (first == kScores / 2 / kGroupScores * kGroupScores) halfway(sum[0] + sum[1] + sum[2] + sum[3]);
    if (columns.sees_group(first / kGroupScores)) {
#pragma unroll
      for (int i = first; i < kScores && i < first + kGroupScores; ++i) {
        s[i] = power(i, s[i]);
        if constexpr (!kSumInMatrix) sum[i % 4] += s[i];
      }
    } else {
#pragma unroll
      for (int i = first; i < kScores && i < first + kGroupScores; ++i) s[i] = 0;
    }
  }
  rows.add(sum, reference_is_maximum);
}

// The careful step, taken where the mask cuts and for the first tile of an item: references rise to this tile's maxima
// before anything is exponentiated. If `exact`, this is right for every input. Otherwise references may be older where
// sums are checked later (kChecksEarlierSums), once all rows of the warp have one.
__device__ inline void careful_softmax(Scores& s, RowStates& rows, const Columns& columns, bool exact,
                                       float (&factor)[2]) {
  const bool rises = !kChecksEarlierSums || exact ||
                     __any_sync(0xffffffff, rows.reference[0] == -kInfinity || rows.reference[1] == -kInfinity);
  factor[0] = factor[1] = 1.0f;
  if (rises) {
    float maximum[2];
    row_maxima(s, columns, maximum);
    maximum[0] = quad_max(maximum[0]);
    maximum[1] = quad_max(maximum[1]);
    if constexpr (config.max_logit) {
      rows.top[0] = fmaxf(rows.top[0], maximum[0]);
      rows.top[1] = fmaxf(rows.top[1], maximum[1]);
    }
    raise_references(rows, maximum, factor);
  }
  const float reference[2] = {rows.reference[0] == -kInfinity ? 0.0f : rows.reference[0],
                              rows.reference[1] == -kInfinity ? 0.0f : rows.reference[1]};
  // Two operations compute the offset here; offset_of() gives the reason for one in the main loop.
  const auto offset_here = [](float x) { return kLinear ? offset_of(x) : x * kLog2Scale - kWeightExponent; };
  float offset[2] = {offset_here(reference[0]), offset_here(reference[1])};
  // The product of a large score and the scale is not exact enough in an exponent, so the reference is subtracted
  // first. Kernels that repeat failed items always do so in the careful item, and never elsewhere.
  const bool large = fabsf(reference[0]) > kLargeScore || fabsf(reference[1]) > kLargeScore;
  if (kMainIsCareful ? __any_sync(0xffffffff, large) : exact) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] -= reference[i / 2 % 2];
    offset[0] = offset[1] = offset_here(0);
  }
  exponentiate(
      s, rows, columns, rises, [&](int i, float x) { return weight(x * kExponentScale - offset[i / 2 % 2]); },
      [](float) {});
}

// Computes logits and their exponentials in one pass.
template <class Math, class Seen, class Halfway>
__device__ inline void exponentiate_logits(Scores& s, RowStates& rows, const Seen& seen, const float (&offset)[2],
                                           Tile& tile, Math math, const Halfway& halfway) {
  float sum[4] = {};
  for_each_logit(s, tile, math, [&](int i, auto logit) {
    if (i == 2) halfway(sum[0] + sum[1]);  // This is the first logit of the second row.
    s[i] = weight(seen(i, exponent(logit, kExponentScale, offset[i / 2 % 2])));
    if constexpr (!kSumInMatrix) sum[i % 4] += s[i];
  });
  rows.add(sum, false);
}

// Turns products of capped scores, whose arguments are small, into probabilities.
template <class Seen>
__device__ inline void exponentiate_capped(Scores& s, RowStates& rows, const Seen& seen, const float (&offset)[2]) {
  exponentiate(
      s, rows, all_columns(), false,
      [&](int i, float x) { return exp2_approx(seen(i, kCappedExponent.of(x, offset[i / 2 % 2]))); }, [](float) {});
}

// The quick step: references are those of earlier tiles, and nothing waits for a maximum. Softmax does not depend on
// the reference as long as no exponent leaves the range of the formats. That is checked on the way (kReferenceRises),
// and once at the end (reference_failed).
template <class Seen, class Halfway>
__device__ inline void quick_softmax(Scores& s, RowStates& rows, Tile& tile, const Seen& seen, const Halfway& halfway) {
  const bool in_pass = kLogitsInPass && (!kHasInputs || tile.inputs.given);
  if (!kScaleFolded && !in_pass) compute_logits<false>(s, tile);
  const float offset[2] = {offset_of(rows.reference[0]), offset_of(rows.reference[1])};
  if (!in_pass) {
    exponentiate(
        s, rows, all_columns(), false,
        [&](int i, float x) { return weight(seen(i, x * kExponentScale - offset[i / 2 % 2])); }, halfway);
  } else if (kCapped && (uniform(rows.polynomial) || small_arguments(s, tile))) {
    exponentiate_capped(s, rows, seen, offset);
  } else if (config.score_has_tanh && !kCapped && small_arguments(s, tile)) {
    exponentiate_logits(s, rows, seen, offset, tile, SmallArguments(), halfway);
  } else {
    exponentiate_logits(s, rows, seen, offset, tile, FullRange(), halfway);
  }
}

template <class Seen>
__device__ inline void quick_softmax(Scores& s, RowStates& rows, Tile& tile, const Seen& seen) {
  quick_softmax(s, rows, tile, seen, [](float) {});
}

// The filter of exponents for a tile in which every row sees every key: it leaves them as they are.
struct AllKeys {
  __device__ float operator()(int, float x) const { return x; }
};

// A row beyond this value is left as it is: its sum is above kLargestSum, and the item is repeated.
constexpr float kLargestToLower = kLargestSum * kWeightUnit;

// The rare step: raises the reference so that `largest`, in units of probabilities, becomes 1 (or less than 2) if it is
// above. Returns the factor for everything that the row has summed up. Only the sum, if it is not apart, is multiplied
// here.
__device__ inline float lower_row(RowStates& rows, int h, float largest) {
  largest = quad_max(fmaxf(largest, 1.0f));
  // With 8 bits the sums need not show that the item failed, so NaN makes O show the failure.
  if (largest > kLargestToLower) largest = kNarrow ? __uint_as_float(0x7fc00000) : 1.0f;
  // The factor is a power of two, which leaves P as it was rounded.
  if constexpr (kChecksEarlierSums) largest = __uint_as_float(__float_as_uint(largest) & 0xff800000);
  const float before = rows.reference[h] * kLog2Scale;
  rows.reference[h] += log2_approx(largest) / kLog2Scale;
  // The factor is the one between the references as exponents take them: both are rounded.
  const float factor = rows.reference[h] == -kInfinity ? 1.0f : exp2_approx(before - rows.reference[h] * kLog2Scale);
  if constexpr (!kSumsApart) rows.sum[h] *= factor;
  return factor;
}

// Returns whether some P is beyond kLargestP. No P is negative, so their bits have the order of their values. One
// instruction compares three words.
__device__ inline bool has_large(const Probabilities& p) {
  if constexpr (kNarrow) {
    return has_large_narrow(p);
  } else {
    constexpr u32 kLargestBits = 0x7800;  // These are the bits of kLargestP in fp16.
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < kTilesOfP; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) largest = max_of_halves(largest, p[i][j]);
    return largest >> 16 > kLargestBits || (largest & 0xffff) > kLargestBits;
  }
}

// Makes P an operand A. The accumulator of S has the layout of that operand, so P never leaves registers.
__device__ inline void convert(Probabilities& p, const Scores& s) {
  if constexpr (kLinear) {
    convert_linear(p, s);
  } else if constexpr (kNarrow) {
    convert_narrow(p, s);
  } else {
#pragma unroll
    for (int i = 0; i < kTilesOfP; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) p[i][j] = pack<config.element>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
  }
}

// Draws which weights of a tile are kept. The draw does not depend on scores, so it is made while products run.
using Kept = TileNumbers[1][kTilesOfP];
__device__ inline void draw(Kept& kept, const SharedMemory& shared, const WorkState& work, int tile) {
  // Values that follow from the lane stay in registers if there is room: computing them takes 20 instructions of 531
  // (d=128).
  const u32 thread = config.has_score ? recompute(threadIdx.x) : threadIdx.x, lane = thread % 32;
  const DropoutCalls<WeightRows::queries> calls = {load_dropout_key(shared.dropout_key()), static_cast<u32>(work.seq.b),
                                                   static_cast<u32>(work.seq.h), lane};
  calls.draw(kept, static_cast<u32>(work.q_lo) / 16 + thread / 32 - kThreadsPerWarpgroup / 32, tile * kTilesOfP);
}

// Lowers P of the last tile like lower_probabilities, where weights are bits, starting from their exponents.
__device__ inline void lower_exponents(Probabilities& p, Scores& s, RowStates& rows, float (&factor)[2]) {
  constexpr float kLargest =
      (kWeightExponent + kExponentOfBits) * kExponentUnit;  // The largest exponent is the reference's.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = kLargest;
#pragma unroll
    for (int i = 2 * h; i < kScores; i += 4) largest = fmaxf(largest, fmaxf(s[i], s[i + 1]));
    const float before = offset_of(rows.reference[h]);
    rows.reference[h] += (quad_max(largest) - kLargest) / kExponentScale;
    // The rise is the one of the references as exponents take them: both are rounded.
    const float rise = offset_of(rows.reference[h]) - before;
    factor[h] = exp2_approx(rise / -kExponentUnit);
#pragma unroll
    for (int i = 2 * h; i < kScores; i += 4) s[i] -= rise, s[i + 1] -= rise;
  }
  convert_linear(p, s);
}

// Lowers P of the last tile, which waits as an operand and has overflowed. References of all rows of the warp rise, so
// that the next step that has to raise one finds the others raised.
__device__ inline void lower_probabilities(Probabilities& p, Scores& s, RowStates& rows, float (&factor)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = 0;
#pragma unroll
    for (int i = 2 * h; i < kScores; i += 4) largest = fmaxf(largest, fmaxf(s[i], s[i + 1]));
    factor[h] = lower_row(rows, h, largest * kWeightUnit);
#pragma unroll
    for (int i = 2 * h; i < kScores; i += 4) s[i] *= factor[h], s[i + 1] *= factor[h];
  }
  // A weight that is 0 in P stays 0: it has been dropped, or is too small.
#pragma unroll
  for (int i = 0; kDrops && i < kTilesOfP; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((p[i][j] & 0xffff) == 0) s[8 * i + 2 * j] = 0;
      if (p[i][j] >> 16 == 0) s[8 * i + 2 * j + 1] = 0;
    }
  convert(p, s);
}

// Returns the sum of this thread's row h, for kChecksEarlierSums: of the tiles that O has summed up or, where sums are
// added, of all tiles.
__device__ inline float row_sum(const RowStates& rows, const Output& o, int h) {
  return kSumInMatrix ? o[config.head_dim_v / 2 + 2 * h] : rows.sum[h];
}
__device__ inline bool has_large_sum(const RowStates& rows, const Output& o) {
  return row_sum(rows, o, 0) > kLargeSum || row_sum(rows, o, 1) > kLargeSum;
}

// Lowers the sums of all tiles so far, and P of the last tile, which waits as an operand.
__device__ inline void lower_sums(Probabilities& p, RowStates& rows, const Output& o, float (&factor)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    factor[h] = lower_row(rows, h, row_sum(rows, o, h) * kWeightUnit);
    // The factors are powers of two but for the rounding of the references, so P stays as it was rounded.
    const u32 factors = pack<Element::bf16>(factor[h], factor[h]);
#pragma unroll
    for (int i = 0; i < kTilesOfP; ++i)
#pragma unroll
      for (int j = h; j < 4; j += 2) p[i][j] = product_of_bf16(p[i][j], factors);
  }
}

}  // namespace flashjit
