// The reference against problems whose answer is known on paper, and proof that its error rule catches wrong kernels.
#include "autotune/reference/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "autotune/reference/compare.h"
#include "compiler/spec/half.h"

namespace flashjit::reference {
namespace {

// bshd, fp32 storage unless told otherwise; everything contiguous.
struct Toy {
  AttentionSpec spec;
  Arguments arguments;
  std::vector<float> q, k, v, o, lse, max_logit, sink;

  Toy(int batch, int q_len, int k_len, int heads_q, int heads_kv, int d, int d_v) {
    spec.dtype = spec.kv_dtype = spec.out_dtype = Dtype::F32;
    spec.d_qk = d, spec.d_v = d_v, spec.heads_q = heads_q, spec.heads_kv = heads_kv;
    spec.scale = 1;
    spec.lse = Lse::ln;
    spec.max_logit = true;
    q.assign(batch * q_len * heads_q * d, 0), o.assign(batch * q_len * heads_q * d_v, NAN);
    k.assign(batch * k_len * heads_kv * d, 0), v.assign(batch * k_len * heads_kv * d_v, 0);
    lse.assign(batch * heads_q * q_len, NAN), max_logit = lse, sink.assign(heads_q, 0);
    arguments.q = {q.data(), "fp32", {batch, q_len, heads_q, d}, {}};
    arguments.k = {k.data(), "fp32", {batch, k_len, heads_kv, d}, {}};
    arguments.v = {v.data(), "fp32", {batch, k_len, heads_kv, d_v}, {}};
    arguments.o = {o.data(), "fp32", {batch, q_len, heads_q, d_v}, {}};
    arguments.lse = {lse.data(), "fp32", {batch, heads_q, q_len}, {}};
    arguments.max_logit = arguments.lse;
    arguments.max_logit.data = max_logit.data();
    arguments.sink = {sink.data(), "fp32", {heads_q}, {}};
  }
  void randomize(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* values : {&q, &k, &v}) {
      for (float& x : *values) x = normal(random);
    }
  }
  Problem problem(Semantics semantics = {}) const { return *Problem::create(spec, arguments, std::move(semantics)); }
  ExactRow row(const RowId& id, Semantics semantics = {}) const {
    const Problem p = problem(std::move(semantics));
    return p.exact(id, p.keys_values(id.b, p.kv_head(id.h)));
  }
  // Writes the exact result, rounded, as a perfect kernel would.
  void solve(const Semantics& semantics = {}) {
    const Problem p = problem(semantics);
    for (const RowId& id : p.rows()) {
      const ExactRow exact = p.exact(id, p.keys_values(id.b, p.kv_head(id.h)));
      const std::size_t token = (id.b * p.q_len(0) + id.q) * spec.heads_q + id.h;
      for (int c = 0; c < spec.d_v; ++c) o[token * spec.d_v + c] = static_cast<float>(exact.o[c]);
      const std::size_t at = (id.b * spec.heads_q + id.h) * p.q_len(0) + id.q;
      lse[at] = static_cast<float>(exact.lse), max_logit[at] = static_cast<float>(exact.max_logit);
    }
  }
};

TEST(Reference, TheResultAloneIsTheExactOne) {
  Toy s(1, 3, 40, 2, 1, 16, 8);
  s.randomize(1);
  EXPECT_EQ(s.problem().result_alone({0, 1, 2}, s.problem().keys_values(0, 0)).o, s.row({0, 1, 2}).o);
}

TEST(Reference, EqualLogitsGiveTheMean) {
  Toy s(1, 1, 4, 1, 1, 8, 2);
  for (int i = 0; i < 8; ++i) s.v[i] = static_cast<float>(i);  // columns 0 2 4 6 and 1 3 5 7
  const ExactRow row = s.row({0, 0, 0});
  EXPECT_DOUBLE_EQ(row.o[0], 3);
  EXPECT_DOUBLE_EQ(row.o[1], 4);
  EXPECT_DOUBLE_EQ(row.lse, std::log(4.0));
  EXPECT_DOUBLE_EQ(row.max_logit, 0);
}

TEST(Reference, TwoKeysByHand) {
  Toy s(1, 1, 2, 1, 1, 8, 1);
  s.q[0] = 2, s.k[0] = 0.5f, s.k[8] = -1;  // logits 1 and -2
  s.v = {10, -10};
  s.spec.scale = 3;  // 3 and -6
  const ExactRow row = s.row({0, 0, 0});
  const double p = 1 / (1 + std::exp(-9.0));
  EXPECT_NEAR(row.o[0], 10 * p - 10 * (1 - p), 1e-12);
  EXPECT_NEAR(row.lse, 3 + std::log1p(std::exp(-9.0)), 1e-12);
  EXPECT_DOUBLE_EQ(row.max_logit, 3);
}

TEST(Reference, SinkTakesItsShare) {
  Toy s(1, 1, 1, 1, 1, 8, 1);
  s.v[0] = 8;
  s.spec.sink = true;
  s.sink[0] = std::log(3.0f);  // one key of weight 1, the sink of weight 3
  const ExactRow row = s.row({0, 0, 0});
  EXPECT_NEAR(row.o[0], 2, 1e-6);
  EXPECT_NEAR(row.lse, std::log(4.0), 1e-6);
  EXPECT_DOUBLE_EQ(row.max_logit, 0);
  const ExactRow hidden = s.row({0, 0, 0}, {.visible = [](const Position&) { return false; }});
  EXPECT_DOUBLE_EQ(hidden.o[0], 0);
  EXPECT_NEAR(hidden.lse, std::log(3.0), 1e-6);
  EXPECT_EQ(hidden.max_logit, -INFINITY);
}

TEST(Reference, NothingVisibleIsZero) {
  Toy s(1, 1, 3, 1, 1, 8, 2);
  s.v.assign(s.v.size(), NAN);
  const ExactRow row = s.row({0, 0, 0}, {.visible = [](const Position&) { return false; }});
  EXPECT_EQ(row.o, (std::vector<double>{0, 0}));
  EXPECT_EQ(row.lse, -INFINITY);
  EXPECT_TRUE(row.tainted[0]);
  Toy empty(1, 1, 0, 1, 1, 8, 2);
  EXPECT_EQ(empty.row({0, 0, 0}).o, (std::vector<double>{0, 0}));
  EXPECT_EQ(empty.row({0, 0, 0}).lse, -INFINITY);
}

TEST(Reference, MinusInfinityIsHiddenAndNanSpreads) {
  Toy s(1, 1, 2, 1, 1, 8, 1);
  s.v = {1, 5};
  const auto bias = [](double first) {
    return Semantics{.score = [first](const Position& at, Dual x) { return Dual(at.k == 0 ? first : x.d); }};
  };
  EXPECT_DOUBLE_EQ(s.row({0, 0, 0}, bias(-INFINITY)).o[0], 5);
  EXPECT_TRUE(std::isnan(s.row({0, 0, 0}, bias(NAN)).o[0]));
  EXPECT_TRUE(std::isnan(s.row({0, 0, 0}, bias(INFINITY)).o[0]));
  const Semantics all = {.score = [](const Position&, Dual) { return Dual(-INFINITY); }};
  EXPECT_EQ(s.row({0, 0, 0}, all).o[0], 0);
  EXPECT_EQ(s.row({0, 0, 0}, all).lse, -INFINITY);
}

TEST(Reference, GroupedHeadsAndPositions) {
  Toy s(2, 1, 1, 6, 3, 8, 1);
  std::iota(s.v.begin(), s.v.end(), 0.0f);  // v = 3 * batch + kv head
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 6; ++h) {
      Position seen;
      const Semantics look = {.visible = [&](const Position& at) { return seen = at, true; }};
      EXPECT_DOUBLE_EQ(s.row({b, h, 0}, look).o[0], 3 * b + h / 2);
      EXPECT_EQ(seen.hk, h / 2);
      EXPECT_EQ(seen.b, b);
    }
  }
}

TEST(Reference, LayoutsAndStridesFindTheSameNumbers) {
  Toy a(2, 3, 5, 2, 1, 8, 8);
  a.randomize(7);
  Toy b = a;
  // b: q as bhsd inside a larger buffer, the rest transposed as well.
  b.spec.layout = Layout::Bhsd;
  std::vector<float> q(2 * 2 * 3 * 16, NAN);
  for (int n = 0; n < 2; ++n)
    for (int t = 0; t < 3; ++t)
      for (int h = 0; h < 2; ++h)
        for (int i = 0; i < 8; ++i) q[((n * 2 + h) * 3 + t) * 16 + i] = a.q[((n * 3 + t) * 2 + h) * 8 + i];
  b.arguments.q = {q.data(), "fp32", {2, 2, 3, 8}, {2 * 3 * 16, 3 * 16, 16, 1}};
  b.arguments.k = {b.k.data(), "fp32", {2, 1, 5, 8}, {}};  // one KV head: the same order
  b.arguments.v = {b.v.data(), "fp32", {2, 1, 5, 8}, {}};
  // c: packed, two sequences
  Toy c = a;
  c.spec.layout = Layout::Packed;
  std::int32_t q_offsets[] = {0, 3, 6}, k_offsets[] = {0, 5, 10};
  c.arguments.q = {c.q.data(), "fp32", {6, 2, 8}, {}};
  c.arguments.k = {c.k.data(), "fp32", {10, 1, 8}, {}};
  c.arguments.v = {c.v.data(), "fp32", {10, 1, 8}, {}};
  c.arguments.offsets_q = {q_offsets, "i32", {3}, {}};
  c.arguments.offsets_k = {k_offsets, "i32", {3}, {}};
  for (const RowId& row : a.problem().rows()) {
    EXPECT_EQ(a.row(row).o, b.row(row).o);
    EXPECT_EQ(a.row(row).o, c.row(row).o);
    EXPECT_EQ(a.row(row).lse, c.row(row).lse);
  }
}

TEST(Compare, AcceptsARoundedExactResult) {
  Toy s(2, 17, 33, 4, 2, 16, 8);
  s.randomize(1);
  s.solve();
  const Comparison result = compare(s.problem(), {.threads = 2});
  EXPECT_TRUE(result.ok) << result.problem;
  EXPECT_EQ(result.rows_checked, 2 * 17 * 4);
}

struct Spoiler {
  const char* name;
  void (*spoil)(Toy&);
  const char* message;
};

// Keys of a few kinds, each kind of one logit: their P round alike, and nothing averages that out. The kernel here
// rounds P to bf16 relative to references that are not the row's maximum, and is right otherwise.
TEST(Compare, EqualWeightsRoundAlike) {
  constexpr int kKeys = 300, kKinds = 3;
  std::mt19937 random(52014);
  std::uniform_real_distribution<float> logit(-2, 2), lift(0, 6);
  double squares = 0, variance = 0;
  for (int round = 0; round < 400; ++round) {
    Toy s(1, 1, kKeys, 1, 1, 8, 1);
    s.spec.dtype = s.spec.kv_dtype = Dtype::BF16;
    s.spec.lse = Lse::none, s.spec.max_logit = false;
    float kinds[kKinds];
    for (float& kind : kinds) kind = logit(random);
    const float reference = lift(random);
    const auto value = [&](int k) { return kinds[k % kKinds]; };
    const Semantics semantics = {
        .score = [&](const Position& at, Dual) { return Dual(value(static_cast<int>(at.k))); }};
    s.v.assign(kKeys, 0.75f);
    double sum = 0, o = 0;
    for (int k = 0; k < kKeys; ++k) {
      const double p = std::exp(static_cast<double>(value(k)) - reference);
      sum += p, o += round_to(Dtype::BF16, static_cast<float>(p)) * 0.75;
    }
    s.o[0] = static_cast<float>(o / sum);
    const Comparison compared = compare(s.problem(semantics), {});
    EXPECT_TRUE(compared.ok) << compared.problem << " in round " << round;
    squares += (o / sum - 0.75) * (o / sum - 0.75);
    variance += s.row({0, 0, 0}, semantics).variance[0];
  }
  // The rule takes every P for one at the lower end of its power of two, where the unit is largest.
  EXPECT_NEAR(squares / variance, 0.54, 0.1);
}

// Nothing else about the rule depends on that: keys whose logits differ, by however little, count one by one.
TEST(Compare, DifferentWeightsRoundEachByItself) {
  Toy s(1, 1, 256, 1, 1, 8, 1);
  s.spec.dtype = s.spec.kv_dtype = Dtype::BF16;
  s.v.assign(256, 0.75f);
  const auto deviation = [&](double step) {
    const Semantics semantics = {.score = [&](const Position& at, Dual) { return Dual(step * at.k); }};
    return std::sqrt(s.row({0, 0, 0}, semantics).variance[0]);
  };
  EXPECT_NEAR(deviation(0) / deviation(1e-9), 16, 0.01);  // the root of 256
  EXPECT_NEAR(deviation(1e-9), 0.75 / 16 * 0x1p-8 / std::sqrt(3), 1e-6);
}

TEST(Compare, CatchesWrongKernels) {
  const Spoiler spoilers[] = {
      {"one element off", [](Toy& s) { s.o[100] += 1e-4f; }, "o differs by"},
      {"NaN", [](Toy& s) { s.o[5] = NAN; }, "o is nan"},
      {"infinite", [](Toy& s) { s.o[5] = INFINITY; }, "o is inf"},
      {"all a little off",
       [](Toy& s) {
         for (float& x : s.o) x *= 1.00001f;
       },
       "o "},
      {"lse in base 2",
       [](Toy& s) {
         for (float& x : s.lse) x *= 1.4426950408889634f;
       },
       "lse is"},
      {"one lse never written", [](Toy& s) { s.lse.back() = NAN; }, "lse is nan"},
      {"max logit", [](Toy& s) { s.max_logit[3] += 0.001f; }, "max_logit is"},
  };
  for (const Spoiler& spoiler : spoilers) {
    Toy s(2, 17, 33, 4, 2, 16, 8);
    s.randomize(1);
    s.solve();
    spoiler.spoil(s);
    const Comparison result = compare(s.problem());
    EXPECT_FALSE(result.ok) << spoiler.name;
    EXPECT_NE(result.problem.find(spoiler.message), std::string::npos) << spoiler.name << ": " << result.problem;
  }
}

// ---- elements of 8 bits ----

// Q, K and V hold numbers of e4m3, with scales in blocks of 64 rows.
struct NarrowToy : Toy {
  std::vector<float> scale_q, scale_k, scale_v;

  explicit NarrowToy(unsigned seed, int keys = 300, double sharpness = 1) : Toy(1, 70, keys, 2, 1, 32, 16) {
    spec.dtype = spec.kv_dtype = Dtype::E4M3;
    spec.scale_block = 64;
    spec.max_logit = false;
    spec.scale = sharpness / std::sqrt(32.0);
    randomize(seed);
    for (auto* values : {&q, &k, &v}) {
      for (float& x : *values) x = round_to(Dtype::E4M3, x);
    }
    const int blocks = (keys + 63) / 64;
    for (int i = 0; i < 2 * 2; ++i) scale_q.push_back(0.5f + 0.25f * static_cast<float>(i));
    for (int i = 0; i < blocks; ++i) scale_k.push_back(0.8f + 0.1f * static_cast<float>(i % 5));
    for (int i = 0; i < blocks; ++i) scale_v.push_back(2.0f - 0.3f * static_cast<float>(i % 5));
    arguments.params["scale_q"] = {scale_q.data(), "fp32", {1, 2, 2}, {}};
    arguments.params["scale_k"] = {scale_k.data(), "fp32", {blocks, 1}, {}};
    arguments.params["scale_v"] = {scale_v.data(), "fp32", {blocks, 1}, {}};
  }

  // A kernel written apart from the reference: P relative to the row's maximum times `above`, rounded to `weights` at
  // `offset` times its size. `value` says where it finds column c of V, with its scale, for a key.
  using Value = std::function<double(int key, int c)>;
  double value_of(int key, int c) const { return double{v[key * 16 + c]} * scale_v[key / 64]; }
  // `sum` adds up what O is a sum of.
  using Sum = std::function<double(const std::vector<double>& terms)>;
  void compute(Dtype weights, double offset, double above = 1, const Value& value = {}, const Sum& sum_of = {}) {
    const int keys = static_cast<int>(arguments.k.shape[1]);
    for (int row = 0; row < 70 * 2; ++row) {
      const int query = row / 2, head = row % 2;
      std::vector<double> p(keys);
      for (int key = 0; key < keys; ++key) {
        for (int i = 0; i < 32; ++i) p[key] += double{q[row * 32 + i]} * k[key * 32 + i];
        p[key] *= spec.scale * scale_q[query / 64 * 2 + head] * scale_k[key / 64];
      }
      const double reference = *std::ranges::max_element(p) + std::log(above);
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - reference);
      lse[head * 70 + query] = static_cast<float>(reference + std::log(sum));
      for (int c = 0; c < 16; ++c) {
        std::vector<double> terms(keys);
        for (int key = 0; key < keys; ++key) {
          const double weight = round_to(weights, static_cast<float>(p[key] * offset)) / offset;
          terms[key] = weight * (value ? value(key, c) : value_of(key, c));
        }
        o[row * 16 + c] =
            static_cast<float>((sum_of ? sum_of(terms) : std::accumulate(terms.begin(), terms.end(), 0.0)) / sum);
      }
    }
  }
  Comparison judged(const char* weights) {
    Problem problem = this->problem();
    problem.round_weights_to(weights);
    return compare(problem);
  }
};

TEST(Compare, WeightsOfEightBitsHaveARuleOfTheirOwn) {
  for (const unsigned seed : {1u, 2u}) {
    for (const double sharpness : {0.2, 1.0, 8.0}) {
      NarrowToy s(seed, 300, sharpness);
      s.compute(Dtype::F16, 1);
      EXPECT_TRUE(s.judged("fp16").ok) << s.judged("fp16").problem;
      EXPECT_TRUE(s.judged("").ok) << "fp16 is what a spec of 8 bits is judged by if nobody says more";
      for (const double above : {1.0, 4.0}) {  // with references that are somewhat old
        s.compute(Dtype::E4M3, 256, above);
        const Comparison narrow = s.judged("e4m3");
        EXPECT_TRUE(narrow.ok) << narrow.problem << ", seed " << seed << ", sharpness " << sharpness;
        EXPECT_FALSE(s.judged("fp16").ok) << "what is rounded to 8 bits is no result of 16";
      }
    }
  }
}

// What Hopper's matrix unit makes of products of 8 bits: 32 of them and the sum so far, cut off 13 bits below the largest.
double short_sum(double sum, const double* terms, int count) {
  double largest = std::fabs(sum);
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(terms[i]));
  if (largest == 0) return 0;
  const double unit = std::exp2(std::floor(std::log2(largest)) - 13);
  double total = std::trunc(sum / unit);
  for (int i = 0; i < count; ++i) total += std::trunc(terms[i] / unit);
  return total * unit;
}

TEST(Compare, CatchesShortSumsOverAllKeys) {
  constexpr int kKeys = 4111, kAtOnce = 32;
  NarrowToy s(11, kKeys);
  for (float& x : s.v) x = round_to(Dtype::E4M3, x + 1);
  // O of sums that begin anew after so many keys and are added up in full.
  const auto compute = [&](int tile) {
    const NarrowToy::Sum sum = [&](const std::vector<double>& terms) {
      double total = 0, of_tile = 0;
      for (int key = 0; key < kKeys; key += kAtOnce) {
        if (key % tile == 0) total += std::exchange(of_tile, 0);
        of_tile = short_sum(of_tile, &terms[static_cast<std::size_t>(key)], std::min(kAtOnce, kKeys - key));
      }
      return total + of_tile;
    };
    s.compute(Dtype::E4M3, 256, 1, {}, sum);
  };
  compute(128);
  EXPECT_TRUE(s.judged("e4m3").ok) << s.judged("e4m3").problem;
  compute(kKeys + 1);
  EXPECT_FALSE(s.judged("e4m3").ok) << "5 % are lost";
}

// Of scores of 450000 the last bits are lost, and these say which key has all the weight: 220 nats of difference.
TEST(Compare, LargeScoresOfEightBitsMayChangePlaces) {
  constexpr int kDims = 32;
  Toy s(1, 1, 3, 1, 1, kDims, 1);
  s.spec.dtype = s.spec.kv_dtype = Dtype::E4M3;
  s.spec.lse = Lse::none, s.spec.max_logit = false;
  s.spec.scale = 1000;
  s.q.assign(kDims, 1);
  s.k[0] = s.k[kDims] = 448, s.k[2 * kDims] = 416;
  s.k[1] = 0x1p-5f;
  std::fill_n(&s.k[kDims + 1], 16, 0x1p-6f);
  s.v = {1, -1, 5};
  const auto product = [&](int key) {
    const std::vector<double> terms(s.k.begin() + key * kDims, s.k.begin() + (key + 1) * kDims);
    return std::pair(std::accumulate(terms.begin(), terms.end(), 0.0), short_sum(0, terms.data(), kDims));
  };
  ASSERT_GT(product(1).first, product(0).first) << "in full";
  ASSERT_LT(product(1).second, product(0).second) << "in 13 bits";
  const auto is_right = [&](float o) {
    s.o[0] = o;
    Problem problem = s.problem();
    problem.round_weights_to("e4m3");
    return compare(problem).ok;
  };
  EXPECT_TRUE(is_right(-1)) << "V of the largest score";
  EXPECT_TRUE(is_right(1)) << "V of the score that is the largest in 13 bits";
  EXPECT_FALSE(is_right(5)) << "V of a score that is far below";
}

// A score that bends where the product lies: what 13 bits leave of it is on the other side.
TEST(Compare, ScoresOfEightBitsMayBendWithinARounding) {
  constexpr int kDims = 32;
  constexpr double kProduct = 448.25, kInShort = 448;
  Toy s(1, 1, 1, 1, 1, kDims, 1);
  s.spec.dtype = s.spec.kv_dtype = Dtype::E4M3;
  s.spec.max_logit = false;
  s.q.assign(kDims, 1);
  s.k[0] = 448;
  std::fill_n(&s.k[1], 16, 0x1p-6f);
  ASSERT_EQ(short_sum(0, std::vector<double>(s.k.begin(), s.k.end()).data(), kDims), kInShort);
  const Semantics clamped = {.visible = {}, .score = [=](const Position&, Dual x) {
                               return Dual(std::min(x.f, static_cast<float>(kProduct)), std::min(x.d, kProduct));
                             }};
  s.o[0] = s.v[0] = 1;
  const auto is_right = [&](double lse, const char* weights) {
    s.lse[0] = static_cast<float>(lse);
    Problem problem = s.problem(clamped);
    problem.round_weights_to(weights);
    return compare(problem).ok;
  };
  EXPECT_TRUE(is_right(kInShort, "e4m3"));
  EXPECT_FALSE(is_right(kInShort, "fp16")) << "products of 16 bits are added up in full";
  EXPECT_FALSE(is_right(kInShort - 2, "e4m3"));
}

TEST(Compare, CatchesWrongKernelsOfEightBits) {
  const auto expect_caught = [](NarrowToy& s, const char* what) { EXPECT_FALSE(s.judged("e4m3").ok) << what; };
  NarrowToy s(7);
  const auto value_of = [&](int key, int c) { return s.value_of(key, c); };
  s.compute(Dtype::E4M3, 256, 1, value_of);
  ASSERT_TRUE(s.judged("e4m3").ok) << s.judged("e4m3").problem;
  s.compute(Dtype::E4M3, 256, 1, [&](int key, int c) { return value_of(key < 288 ? key ^ 8 : key, c); });
  expect_caught(s, "V's keys in another order than P's");
  s.compute(Dtype::E4M3, 256, 1, [&](int key, int c) { return value_of(key, c ^ 1); });
  expect_caught(s, "columns of V change places");
  s.compute(Dtype::E4M3, 256, 1, [&](int key, int c) { return double{s.v[key * 16 + c]} * s.scale_v[0]; });
  expect_caught(s, "all blocks have the scale of the first");
  s.compute(Dtype::E4M3, 256);
  s.o[5] += 0.5f;
  expect_caught(s, "one element is off");
  s.compute(Dtype::E4M3, 256, 1, [&](int key, int c) { return key < 256 ? value_of(key, c) : 0; });
  expect_caught(s, "the last keys are missing");
  s.compute(Dtype::E4M3, 1024);
  expect_caught(s, "weights beyond 448 are cut off");
  NarrowToy flat(8, 3000, 0.05);
  flat.compute(Dtype::E4M3, 256);
  ASSERT_TRUE(flat.judged("e4m3").ok) << flat.judged("e4m3").problem;
  flat.compute(Dtype::E4M3, 1, 512);
  expect_caught(flat, "small weights are lost without an offset");
  NarrowToy wrong_lse(9);
  wrong_lse.compute(Dtype::E4M3, 256);
  for (float& x : wrong_lse.lse) x += std::log(1.05f);
  expect_caught(wrong_lse, "the LSE is that of 5 % more");
}

TEST(Compare, CatchesAMaskThatIsOneOff) {
  const Semantics causal = {.visible = [](const Position& at) { return at.k <= at.q; }};
  const Semantics one_off = {.visible = [](const Position& at) { return at.k <= at.q + 1; }};
  Toy s(1, 20, 20, 1, 1, 8, 8);
  s.randomize(3);
  s.solve(one_off);
  EXPECT_FALSE(compare(s.problem(causal)).ok);
  s.solve(causal);
  EXPECT_TRUE(compare(s.problem(causal)).ok);
}

TEST(Compare, HiddenNonFiniteValuesAreNobodysFault) {
  const Semantics causal = {.visible = [](const Position& at) { return at.k <= at.q; }};
  Toy s(1, 2, 2, 1, 1, 8, 1);
  s.randomize(3);
  s.v[1] = INFINITY;
  s.solve(causal);
  s.o[0] = NAN;  // 0 * inf in a tile that mixes visible and hidden keys
  EXPECT_TRUE(compare(s.problem(causal)).ok) << compare(s.problem(causal)).problem;
  s.o[1] = 0;  // but this row sees the infinity
  EXPECT_FALSE(compare(s.problem(causal)).ok);
}

TEST(Compare, SamplesLargeProblems) {
  Toy s(1, 400, 400, 1, 1, 8, 8);
  s.randomize(9);
  s.solve();
  const Comparison result = compare(s.problem(), {.work = 1e6});
  EXPECT_TRUE(result.ok) << result.problem;
  EXPECT_LT(result.rows_checked, 100);
  EXPECT_GT(result.rows_checked, 8);
}

}  // namespace
}  // namespace flashjit::reference
