// Shared by the warpgroups of the backward kernels: turns at issuing products, and scores kept transposed. A thread has
// two keys (lane / 4 and lane / 4 + 8 of its warp's 16) and two neighbouring queries of every eight.
#pragma once

#include "matrix.gen.cuh"
#include "templates/hopper_backward/dropout.cuh"
#include "templates/hopper_backward/gradient_tiles.cuh"
#include "templates/hopper_backward/inputs.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/work.cuh"
#include "templates/hopper/mask_votes.cuh"

namespace flashjit {

constexpr int kScores = kTileQ / 2, kQuerySteps = kTileQ / 16;
// True if a score function needs the products themselves. If it only adds to them, the product adds -LSE as well.
constexpr bool kScoresApart = scores_apart(config);
// A hidden score becomes this, and its P becomes 0.
#define kHidden (config.has_score || config.scale > 0 ? -kInfinity : kInfinity)
using Scores = float[kScores];
using Fragments = u32[kQuerySteps][4];

// Warpgroups take turns at issuing products, so that one exponentiates beside the products of the other. The first
// warpgroup begins, and the second one begins one turn more than it ends.
struct Turns {
  u32 warpgroup;
  __device__ void begin() const { sync_named(kTurnBarrier + warpgroup, 2 * kThreadsPerWarpgroup); }
  __device__ void end() const { arrive_named(kTurnBarrier + (warpgroup ^ 1), 2 * kThreadsPerWarpgroup); }
};

// A fragment that, multiplied by row terms, adds to each score the three numbers of its query. `first` selects the
// first three of a row, or the ones behind them.
struct Ones {
  u32 of[1][4];
  __device__ void set(u32 first = 0, u32 thread = lane_id()) {
    const u32 lane = thread % 4, one = pack<Element::bf16>(1.0f, 0.0f);
    of[0][0] = of[0][1] = lane == first ? one | one << 16 : lane == first + 1 ? one : 0;
    of[0][2] = of[0][3] = 0;
  }
};

// Stores dS of 64 keys in a panel, not transposed: a row for each query.
__device__ inline void store_ds(u32 panel, const Fragments& ds) {
  const u32 to = matrices_of_warp(panel);
#pragma unroll
  for (int i = 0; i < kQuerySteps; ++i) store_matrices_transposed(to + i * 16 * kPanelWidth, ds[i]);
}

// Returns whether some scores of the tile have to be hidden. (Elements that the score reads behind the last query may
// be anything.)
__device__ inline bool is_mixed(const BackwardItem& item, const Steps& at) {
  const int index = kListed ? at.list_index : at.tile;
  return index < item.full_first || index > item.full_last || (kHasInputs && (at.tile + 1) * kTileQ > item.seq.q_len);
}

// Returns whether all queries and keys of the tile exist.
__device__ inline bool is_whole(const BackwardItem& item, int tile) {
  return (tile + 1) * kTileQ <= item.seq.q_len && item.k_lo + kTileKv <= item.seq.k_len;
}

// Finds the coordinates of a thread's scores: score i belongs to key k(i) and query q(i).
struct ScoreCoords {
  Sequence seq;
  int key, query;
  // `keys` is this warpgroup's first key, counted from the item's first.
  __device__ ScoreCoords(const BackwardItem& item, u32 keys, const Steps& at) : seq(item.seq) {
    const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
    key = item.k_lo + static_cast<int>(keys + thread / 32 * 16 + thread % 32 / 4);
    query = at.tile * kTileQ + static_cast<int>(thread % 4) * 2;
    seq.h = at.head;
  }
  __device__ int k(int i) const { return key + i % 4 / 2 * 8; }
  __device__ int q(int i) const { return query + i / 4 * 8 + i % 2; }
  // The query is opaque from group to group. Otherwise ptxas keeps what is computed of each query, and registers do not
  // suffice.
  __device__ bool hides(const KernelParams& params, int i) {
    if (i % 8 == 0) query = static_cast<int>(recompute(query));
    // Tensors that a mask reads may end at the last query as well.
    return k(i) >= seq.k_len || q(i) >= seq.q_len || !Variant::visible(params, seq, q(i), k(i));
  }
};

// A bit for each score is set if the score is hidden. Finding all bits first leaves nothing but them in registers when
// they are applied.
template <int scores>
struct HiddenBits {
  u32 words[(scores + 31) / 32] = {};
  template <class Hides>
  __device__ void find(const Hides& hides) {
#pragma unroll
    for (int i = 0; i < scores; ++i) {
      words[i / 32] |= static_cast<u32>(hides(i)) << i % 32;
      if (i % 4 == 3) words[i / 32] = recompute(words[i / 32]);
    }
  }
  __device__ bool operator[](int i) const { return words[i / 32] >> i % 32 & 1; }
};
template <int scores>
__device__ inline void hide(float (&s)[scores], const HiddenBits<scores>& hidden) {
#pragma unroll
  for (int i = 0; i < scores; ++i)
    if (hidden[i]) s[i] = kHidden;
  pin_registers(s);  // This keeps what follows out of the branch.
}

// Tests visibility where the queries that see a key are a range, for each of a thread's two keys: `from` is how far the
// thread's first query is behind the first one of the range, `count` how many queries the range has.
struct VisibleQueries {
  u32 from[2], count[2];
  __device__ VisibleQueries(const KernelParams& params, const ScoreCoords& coords) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = coords.key + h * 8, begin = Variant::q_begin(params, coords.seq, key, key);
      const int end = min(Variant::q_end(params, coords.seq, key, key), coords.seq.q_len);
      from[h] = coords.query - begin;
      count[h] = key < coords.seq.k_len ? max(end - begin, 0) : 0;
    }
  }
  __device__ bool operator[](int i) const { return from[i % 4 / 2] + (i / 4 * 8 + i % 2) < count[i % 4 / 2]; }
};

// Tests visibility where warps vote on the mask: bits show which queries see each of a thread's two keys.
struct VotedQueries {
  u32 of_key[2];
  __device__ VotedQueries(const KernelParams& params, const ScoreCoords& coords) {
    using Votes = RowVotes<kTileQ>;
    const u32 lane = recompute(threadIdx.x) % 32;
    const Sequence& seq = coords.seq;
    const int last_query = seq.q_len - 1, last_key = seq.k_len - 1;
    // These numbers lead from the thread's first query and key to the lane's query, and to the key of row 0.
    const int first = coords.query - static_cast<int>(lane % 4) * 2 + Votes::first_column(lane);
    const int first_row = uniform(coords.key - static_cast<int>(lane / 4));
    Variant::QueryReads at_queries[Votes::kVotes];
#pragma unroll
    for (int j = 0; j < Votes::kVotes; ++j)
      at_queries[j] = Variant::read_at_query(params, seq, min(first + j * 32, last_query));
    const auto at_own =
        Variant::read_at_key(params, seq, min(first_row + static_cast<int>(lane % kVotingRows), last_key));
    Votes votes;
    if constexpr (Variant::kReadsAndRange) {
      votes.template take_alike<Variant::kKeyReads>(at_own, [&](const Variant::KeyReads& at_key, int j) {
        return Variant::sees_by_reads(params, seq, at_queries[j], at_key);
      });
    } else {
      votes.take(lane, [&](int i) {
        const auto at_key = reads_of_lane<Variant::kKeyReads>(at_own, i);
        return [&, i, at_key](int j) {
          return Variant::visible_with(params, seq, at_queries[j], at_key, min(first + j * 32, last_query),
                                       min(first_row + i, last_key));
        };
      });
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = coords.key + 8 * h;
      const int begin = Variant::range_begin(params, seq, key, key),
                end = min(Variant::range_end(params, seq, key, key), seq.q_len);
      const u32 bits = votes.bits(lane, h, 0, begin - coords.query, end - coords.query);
      of_key[h] = key <= last_key ? bits : 0;
    }
  }
  __device__ bool operator[](int i) const { return of_key[i % 4 / 2] >> (i / 4 * 2 + i % 2) & 1; }
};

// Calls `act` for the scores of a mixed tile that are hidden.
template <class Act>
__device__ inline void each_hidden(const KernelParams& params, ScoreCoords coords, const Act& act) {
  if constexpr (config.queries_are_range) {
    const VisibleQueries visible(params, coords);
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (!visible[i]) act(i);
  } else if constexpr (config.mask_by_rows) {
    const VotedQueries visible(params, coords);
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (!visible[i]) act(i);
  } else {
    HiddenBits<kScores> hidden;
    hidden.find([&](int i) { return coords.hides(params, i); });
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (hidden[i]) act(i);
  }
}

template <Element element>
__device__ inline void convert(Fragments& fragments, const Scores& s) {
#pragma unroll
  for (int i = 0; i < kScores; i += 2) fragments[i / 8][i % 8 / 2] = pack<element>(s[i], s[i + 1]);
}

// Makes logits of products where the score only adds to them. These products are relative to the LSE already.
__device__ inline void add_to_scores(Scores& s, const KernelParams& params, ScoreCoords coords,
                                     const InputWords& words) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    if (i % 8 == 0) coords.query = static_cast<int>(recompute(coords.query));
    const int q = Variant::kLoadsByPosition ? min(coords.q(i), coords.seq.q_len - 1) : coords.q(i),
              k = Variant::kLoadsByPosition ? min(coords.k(i), coords.seq.k_len - 1) : coords.k(i);
    s[i] = Variant::score_and_slope(words.params(params, i), coords.seq, s[i] * config.scale, q, k).score;
  }
}

// Holds a logit as an exponent of 2, and its derivative by the scaled product. softcap() is close to tanh only in
// absolute terms, to about 1e-7. With the caps of kCapped P in 16 bits does not show this error.
constexpr bool kCapped = config.score_cap > 0 && config.score_cap <= 1024;
// The polynomial of small arguments is off by 1e-6 of the logit, which P would show where caps are larger.
constexpr bool kAsksIfSmall = kCapped && config.score_cap <= 128;
struct ExponentAndSlope {
  float exponent, slope;
};
// If `small`, tanh is a polynomial, which needs no special function. Three special functions for each score limit the
// speed at d=64 [M87].
template <bool small>
__device__ inline ExponentAndSlope exponent_and_slope(float product, const KernelParams& params,
                                                      const InputWords& words, const ScoreCoords& coords, int i) {
  if constexpr (small) {
    constexpr CappedExponent kExponent = {config.score_cap * kLog2e, config.score_factor};
    constexpr float kUnit = 1 / (config.score_cap * kLog2e);
    const float exponent = kExponent.of(product, 0);
    return {exponent, fmaf(exponent * (-kUnit * kUnit), exponent, 1.0f)};
  }
  if constexpr (kCapped) {
    const float power = exp2_approx(product * (config.score_factor * 2 * kLog2e));
    const float squashed = 1.0f - 2.0f * reciprocal_approx(power + 1.0f);
    return {squashed * (config.score_cap * kLog2e), 1.0f - squashed * squashed};
  }
  const auto both =
      Variant::score_and_slope(words.params(params, i), coords.seq, product * config.scale,
                               min(coords.q(i), coords.seq.q_len - 1), min(coords.k(i), coords.seq.k_len - 1));
  return {both.score * kLog2e, both.slope};
}

// The logits of scores first..first + 3 are relative to these two numbers, one for each of their two queries, as
// exponents of 2.
struct MinusLse {
  float of[2];
  __device__ MinusLse(u32 terms, int first) {
    const u32 query = recompute(threadIdx.x) % 4 * 2 + first * 2;
    u32 pair[2];
    if constexpr (lse_is_float(config)) {
      load_shared_pair(pair[0], pair[1], terms + query * static_cast<u32>(sizeof(float)));
      of[0] = __uint_as_float(pair[0]), of[1] = __uint_as_float(pair[1]);
    } else {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        load_shared_pair(pair[0], pair[1], terms + (query + c) * kTermBytes);
        of[c] = sum_of_split(pair[0], pair[1]) * kExponentScale;
      }
    }
  }
};

// Returns whether the arguments of tanh are small enough for the polynomial, for all products of a warp.
__device__ inline bool small_arguments(const Scores& s) {
  float largest[4] = {};
#pragma unroll
  for (int i = 0; i < kScores; ++i) largest[i % 4] = fmaxf(largest[i % 4], fabsf(s[i]));
  const float x = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  return __all_sync(0xffffffff, x * fabsf(config.score_factor) <= SmallArguments::kLargest);
}

// Turns the products of S into P, which goes to `p`, and S into P times the derivatives of the scores.
template <bool small>
__device__ inline void apply_to_all(Scores& s, Fragments& p, const KernelParams& params, const ScoreCoords& coords,
                                    u32 terms, const InputWords& words) {
#pragma unroll
  for (int j = 0; j < kScores; j += 4) {
    const MinusLse minus_lse(terms, j);
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      float slope[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = j + e + c;
        const ExponentAndSlope both = exponent_and_slope<small>(s[i], params, words, coords, i);
        s[i] = exp2_approx(both.exponent + minus_lse.of[c]);
        slope[c] = both.slope;
      }
      p[j / 8][j % 8 / 2 + e / 2] = pack<config.element>(s[j + e], s[j + e + 1]);
      s[j + e] *= slope[0];
      s[j + e + 1] *= slope[1];
    }
  }
  pin_registers(s);
  pin_fragments(p);
}
__device__ inline void apply_scores(Scores& s, Fragments& p, const KernelParams& params, ScoreCoords coords, u32 terms,
                                    bool mixed, const InputWords& words) {
  if (kAsksIfSmall && small_arguments(s)) apply_to_all<kAsksIfSmall>(s, p, params, coords, terms, words);
  else apply_to_all<false>(s, p, params, coords, terms, words);
  if (!mixed) return;
  each_hidden(params, coords, [&](int i) {
    s[i] = 0;
    p[i / 8][i % 8 / 2] &= i % 2 == 0 ? 0xffff0000 : 0x0000ffff;
  });
  pin_registers(s);
  pin_fragments(p);
}

// Turns products of S and dP into P and dS, and into what these add to gradients of parameters. All are made at once,
// because a derivative may need the score itself.
using OfParameters = ParameterSums<2>;
__device__ inline void make_all_gradients(const Scores& s, const ByWeight& by_weight, Fragments& p, Fragments& ds,
                                          OfParameters& sums, const KernelParams& params, ScoreCoords coords,
                                          bool mixed) {
  HiddenBits<kScores> hidden;
  if (mixed) hidden.find([&](int i) { return coords.hides(params, i); });
#pragma unroll
  for (int j = 0; j < kScores; j += 4) {
    const ByWeight::Four four = by_weight.four(j);
    // Scores that are not apart are relative to the LSE already.
    float relative[2] = {0, 0}, of_p[4], of_ds[4];
    typename Variant::Derivatives derivatives[4] = {};
    // Both are opaque for the reason that hides() gives.
    coords.query = static_cast<int>(recompute(coords.query));
    coords.key = static_cast<int>(recompute(coords.key));
    if constexpr (kScoresApart) {
      const MinusLse minus_lse(by_weight.terms, j);
      relative[0] = minus_lse.of[0], relative[1] = minus_lse.of[1];
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = j + e;
      const bool exists = coords.q(i) < coords.seq.q_len && coords.k(i) < coords.seq.k_len;
      typename Variant::Derivatives& d = derivatives[e];
      if constexpr (Variant::kLoadsByPosition) {
        if (exists)
          d = Variant::score_and_derivatives(params, coords.seq, s[i] * config.scale, coords.q(i), coords.k(i));
      } else {
        d = Variant::score_and_derivatives(params, coords.seq, s[i] * config.scale,
                                           min(coords.q(i), coords.seq.q_len - 1),
                                           min(coords.k(i), coords.seq.k_len - 1));
      }
      of_p[e] = of_ds[e] = hidden[i] ? 0.0f : exp2_approx(d.score * kLog2e + relative[e % 2]);
      if (e % 2 == 1) four.multiply(e - 1, of_ds[e - 1], of_ds[e]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = j + e;
      const float by_logit = of_p[e] == 0.0f ? 0.0f : of_ds[e];
      of_ds[e] = by_logit == 0.0f ? 0.0f : by_logit * derivatives[e].slope;
      sums.add(params, coords.seq, coords.q(i), coords.k(i), e / 2, e % 2, by_logit * kDropoutFactor, derivatives[e]);
    }
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      p[j / 8][j % 8 / 2 + e / 2] = pack<config.element>(of_p[e], of_p[e + 1]);
      ds[j / 8][j % 8 / 2 + e / 2] = pack<config.element>(of_ds[e], of_ds[e + 1]);
    }
  }
  pin_fragments(p);
  pin_fragments(ds);
}

// Turns S into P, which goes to `p` as well.
__device__ inline void make_probabilities(Scores& s, Fragments& p, const KernelParams& params, const BackwardItem& item,
                                          u32 keys, const Steps& at, u32 terms, const InputWords& words = {}) {
  const bool mixed = is_mixed(item, at);
  if constexpr (kScoresApart) {
    apply_scores(s, p, params, ScoreCoords(item, keys, at), terms, mixed, words);
    return;
  }
  if constexpr (config.has_score) add_to_scores(s, params, ScoreCoords(item, keys, at), words);
  if (mixed) {
    each_hidden(params, ScoreCoords(item, keys, at), [&](int i) { s[i] = kHidden; });
    pin_registers(s);  // This keeps what follows out of the branch.
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) s[i] = exp2_approx(s[i] * (config.has_score ? kLog2e : kExponentScale));
  convert<config.element>(p, s);
}

// Makes dS = P dP and adds to gradients of parameters, where the derivatives do not depend on the product itself. P
// becomes dS.
__device__ inline void make_ds_and_sums(Fragments& ds, Scores& p, const ByWeight& by_weight, OfParameters& sums,
                                        const KernelParams& params, ScoreCoords coords) {
#pragma unroll
  for (int j = 0; j < kScores; j += 4) {
    const ByWeight::Four four = by_weight.four(j);
    coords.query = static_cast<int>(recompute(coords.query));
#pragma unroll
    for (int i = j; i < j + 4; ++i) {
      const int q = coords.q(i), k = coords.k(i);
      if (i % 2 == 0) {
        const bool nothing[2] = {p[i] == 0.0f, p[i + 1] == 0.0f};
        four.multiply(i - j, p[i], p[i + 1]);
        if (nothing[0]) p[i] = 0;
        if (nothing[1]) p[i + 1] = 0;
      }
      sums.add(params, coords.seq, q, k, i % 4 / 2, i % 2, p[i] * kDropoutFactor,
               Variant::score_and_derivatives(params, coords.seq, 0.0f, q, k));
    }
    ds[j / 8][j % 8 / 2] = pack<config.element>(p[j], p[j + 1]);
    ds[j / 8][j % 8 / 2 + 1] = pack<config.element>(p[j + 2], p[j + 3]);
  }
}

// Makes the gradients of tensors that are read in tiles from dS.
template <bool in_one>
__device__ inline void put_gradients(const Scores& ds, GradientTiles& tiles, const KernelParams& params,
                                     const ScoreCoords& coords) {
#pragma unroll
  for (int j = 0; j < kScores; j += 4) {
    float by_logit[4];
    typename Variant::Derivatives derivatives[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      by_logit[e] = ds[j + e] * kDropoutFactor;
      derivatives[e] = Variant::score_and_derivatives(params, coords.seq, 0.0f, coords.q(j + e), coords.k(j + e));
    }
    tiles.add<in_one>(coords.seq, j * 2, by_logit, derivatives);
  }
}
__device__ inline void put_gradient_tiles(const Scores& ds, const KernelParams& params, const BackwardItem& item,
                                          u32 keys, const Steps& at) {
  const ScoreCoords coords(item, keys, at);
  GradientTiles tiles = {params, item, keys, at.tile};
  if (tiles.begin(coords.seq, is_whole(item, at.tile))) put_gradients<true>(ds, tiles, params, coords);
  else put_gradients<false>(ds, tiles, params, coords);
}

// Makes dS = P dP.
__device__ inline void make_ds(Fragments& ds, const Scores& p, const ByWeight& by_weight) {
#pragma unroll
  for (int i = 0; i < kScores; i += 4) {
    const ByWeight::Four four = by_weight.four(i);
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      float first = p[i + e], second = p[i + e + 1];
      four.multiply(e, first, second);
      ds[i / 8][i % 8 / 2 + e / 2] = pack<config.element>(first, second);
    }
  }
}

}  // namespace flashjit
