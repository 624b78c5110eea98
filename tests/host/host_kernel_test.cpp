// Kernels of the host backend, on every target this processor can run, against the float64 reference with masks and
// scores written a second time by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/host/host_case.h"

namespace flashjit {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

class HostKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!backend()) GTEST_SKIP() << "built without the host backend";
  }
};

void expect_right(const Row& row, Dtype dtype, const Target& target, bool naive) {
  SCOPED_TRACE(row.spec + " as " + std::string(name(dtype)) + " on " + std::string(target.name) +
               (naive ? " naive" : ""));
  HostCase one(row, dtype, target, naive);
  ASSERT_TRUE(one.ok()) << one.problem();
  one.run(3);
  const auto problem = reference::Problem::create(one.spec(), one.arguments(), row.semantics);
  ASSERT_TRUE(problem) << problem.error().message;
  const reference::Comparison comparison = reference::compare(*problem);
  EXPECT_TRUE(comparison.ok) << comparison.problem;
}

TEST_F(HostKernels, MatchTheReferenceOnEveryTarget) {
  bool first = true;
  for (const Target* target : runnable_targets()) {
    for (const Row& row : rows()) {
      expect_right(row, Dtype::F32, *target, false);
      expect_right(row, Dtype::BF16, *target, false);
      if (first) expect_right(row, Dtype::F16, *target, false);  // fp16 is the fp32 kernel with another conversion
    }
    first = false;
  }
}

TEST_F(HostKernels, NaiveVersionMatchesTheReference) {
  for (const Row& row : rows()) {
    for (const Dtype dtype : {Dtype::F32, Dtype::F16, Dtype::BF16})
      expect_right(row, dtype, *runnable_targets().back(), true);
  }
}

TEST_F(HostKernels, OddTilesMatchTheReference) {
  Row row = rows()[1];
  for (const char* pins : {"tile_q=1,tile_kv=16", "tile_q=7,tile_kv=48", "tile_q=200,tile_kv=512"}) {
    row.pins = pins;
    for (const Target* target : runnable_targets()) expect_right(row, Dtype::BF16, *target, false);
  }
}

TEST_F(HostKernels, ResultsDoNotDependOnTheNumberOfWorkers) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.spec);
    HostCase one(row, Dtype::BF16, *runnable_targets().back(), false);
    ASSERT_TRUE(one.ok()) << one.problem();
    one.run(1);
    const std::vector<std::uint8_t> alone = one.output_bytes();
    one.run(3);
    EXPECT_EQ(alone, one.output_bytes());
  }
}

// Which rows of O hold a NaN, when key 40's first element is `value`.
std::vector<bool> rows_with_nan(double value, Dtype dtype, const Target& target, float* lse_of_first) {
  const Row row{"fwd {} d=64 heads=1 lse=ln mask=\"causal\" out=fp32", 1, 70, 70, {}};
  HostCase one(row, dtype, target, false, [value](char which, std::int64_t index, double drawn) {
    if (which == 'q' && index % 64 == 0) return 1.0;
    return which == 'k' && index == 40 * 64 ? value : drawn;
  });
  EXPECT_TRUE(one.ok()) << one.problem();
  one.run(1);
  const auto* o = static_cast<const float*>(one.arguments().o.data);
  *lse_of_first = static_cast<const float*>(one.arguments().lse.data)[69];
  std::vector<bool> found;
  for (int q = 0; q < 70; ++q) found.push_back(std::isnan(o[q * 64]) && std::isnan(o[q * 64 + 63]));
  return found;
}

TEST_F(HostKernels, NanAndInfinityReachTheRowsThatSeeThem) {
  for (const Target* target : runnable_targets()) {
    for (const Dtype dtype : {Dtype::F32, Dtype::F16, Dtype::BF16}) {
      SCOPED_TRACE(std::string(target->name) + " " + std::string(name(dtype)));
      float lse = 0;
      std::vector<bool> expected(70, false);
      for (int q = 40; q < 70; ++q) expected[static_cast<std::size_t>(q)] = true;
      EXPECT_EQ(rows_with_nan(std::nan(""), dtype, *target, &lse), expected);
      EXPECT_TRUE(std::isnan(lse));
      // exp(inf - inf)
      EXPECT_EQ(rows_with_nan(kInfinite, dtype, *target, &lse), expected);
      EXPECT_TRUE(std::isnan(lse));
      // A score of -inf is a key with weight zero.
      EXPECT_EQ(rows_with_nan(-kInfinite, dtype, *target, &lse), std::vector<bool>(70, false));
      EXPECT_TRUE(std::isfinite(lse));
    }
  }
}

// The error rule is wide where a float cannot tell scores apart: of a row whose scores are all the same the result is the
// mean of V, however far below zero they are.
TEST_F(HostKernels, KeysThatAreAllHiddenByTheLeastFloatWeighTheSame) {
  for (const double bias : {-0x1.fffffep127, -0x1.fep127, 0x1.fep127}) {
    Row row{"fwd {} d=32 heads=1 params=\"t: fp32[1]\" score=\"s + t[k]\" lse=log2", 1, 3, 90, {}};
    row.data = {{"t", Dtype::F32, {90}, [bias](std::int64_t) { return bias; }}};
    for (const bool naive : {false, true}) {
      SCOPED_TRACE(std::to_string(bias) + (naive ? " naive" : ""));
      HostCase one(row, Dtype::F32, *runnable_targets().back(), naive);
      ASSERT_TRUE(one.ok()) << one.problem();
      one.run(1);
      const auto* o = static_cast<const float*>(one.arguments().o.data);
      const auto* v = static_cast<const float*>(one.arguments().v.data);
      for (int i = 0; i < 3 * 32; ++i) {
        double mean = 0;
        for (int k = 0; k < 90; ++k) mean += v[k * 32 + i % 32] / 90.0;
        ASSERT_NEAR(o[i], mean, 1e-6) << i;
      }
    }
  }
}

// Five keys have a NaN or -inf in V, each in a column of its own. Rows that see the key get it there; all others keep
// their bits.
void expect_only_seen_values(const std::string& rest, const std::function<bool(int q, int k)>& sees, Dtype dtype,
                             const Target& target, bool naive) {
  SCOPED_TRACE(rest + " " + std::string(name(dtype)) + " " + std::string(target.name) + (naive ? " naive" : ""));
  constexpr int kQueries = 70, kWidth = 40, kFirstColumn = 33;
  constexpr int kKeys[] = {0, 40, 41, 127, 149};
  const Row row{"fwd {} d=64/40 heads=1 out=fp32 " + rest, 1, kQueries, 150, {}};
  HostCase clean(row, dtype, target, naive);
  HostCase one(row, dtype, target, naive, [&](char which, std::int64_t index, double drawn) {
    const std::int64_t place = index % kWidth - kFirstColumn;
    if (which != 'v' || place < 0 || place >= 5 || index / kWidth != kKeys[place]) return drawn;
    return place % 2 ? -static_cast<double>(kInfinite) : std::nan("");
  });
  ASSERT_TRUE(clean.ok() && one.ok()) << clean.problem();
  clean.run(2);
  one.run(2);
  const auto* expected = static_cast<const float*>(clean.arguments().o.data);
  const auto* o = static_cast<const float*>(one.arguments().o.data);
  for (int i = 0; i < kQueries * kWidth; ++i) {
    const int q = i / kWidth, place = i % kWidth - kFirstColumn;
    if (place < 0 || place >= 5 || !sees(q, kKeys[place])) {
      ASSERT_EQ(o[i], expected[i]) << "query " << q << ", column " << i % kWidth;
    } else {
      ASSERT_TRUE(place % 2 ? o[i] == -kInfinite : std::isnan(o[i]))
          << o[i] << ", query " << q << ", key " << kKeys[place];
    }
  }
}

TEST_F(HostKernels, ValuesOfHiddenKeysChangeNothing) {
  const auto causal = [](int q, int k) { return k <= q + 80; };
  const auto check = [&](Dtype dtype, const Target& target, bool naive) {
    const auto all = [](int, int) { return true; };
    const auto few = [](int q, int k) { return k < 41 && q != 5; };
    const auto holes = [](int q, int k) { return (q + k) % 7 != 0; };
    expect_only_seen_values("", all, dtype, target, naive);
    expect_only_seen_values("mask=\"causal\" sink", causal, dtype, target, naive);
    expect_only_seen_values("score=\"where(causal, s, -inf)\"", causal, dtype, target, naive);
    expect_only_seen_values("mask=\"k < 41 & q != 5\"", few, dtype, target, naive);
    expect_only_seen_values("mask=\"(q + k) % 7 != 0\"", holes, dtype, target, naive);
  };
  for (const Target* target : runnable_targets()) {
    check(Dtype::F32, *target, false);
    check(Dtype::BF16, *target, false);
  }
  check(Dtype::F16, *runnable_targets().front(), false);
  check(Dtype::BF16, *runnable_targets().back(), true);
}

TEST_F(HostKernels, LongSequencesOfLargeScoresStayFinite) {
  // Scores near +-1000: every exponential but the largest underflows.
  const Row row{"fwd {} d=64 heads=1 scale=40 lse=ln", 1, 20, 700, {}};
  for (const Target* target : runnable_targets()) expect_right(row, Dtype::F32, *target, false);
}

TEST_F(HostKernels, PrintsTheIrOfTargetsItCannotRun) {
  const auto spec = parse_spec("fwd bf16 d=64 heads=1 mask=\"causal\"");
  ASSERT_TRUE(spec);
  const auto target = find_target("x86-64-v4+amx");
  ASSERT_TRUE(target);
  const auto plan = make_plan(*spec, **target);
  ASSERT_TRUE(plan);
  const auto text = backend()->llvm_ir(*plan);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_NE(text->find("@llvm.x86.tdpbf16ps"), std::string::npos);
  EXPECT_NE(text->find("define void @flashjit_tile"), std::string::npos);
}

TEST_F(HostKernels, RefusesAGpuTarget) {
  const auto spec = parse_spec("fwd bf16 d=64 heads=1");
  const auto target = find_target("sm_90a");
  ASSERT_TRUE(spec && target);
  const auto plan = make_plan(*spec, **target);
  ASSERT_TRUE(plan);
  const auto kernel = backend()->compile(*plan, false);
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.error().kind, ErrorKind::Invalid);
  EXPECT_NE(kernel.error().message.find("sm_90a"), std::string::npos);
}

}  // namespace
}  // namespace flashjit
