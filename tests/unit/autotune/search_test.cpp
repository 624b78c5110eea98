// The search with a stopwatch and a clock that are made up.
#include "autotune/search/search.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flashjit {
namespace {

using State = SearchSubject::State;

// Subjects with given times; every sample is off by up to `jitter`, and everything drifts.
struct FakeBench {
  std::vector<double> us;
  double jitter = 0, drift_per_sample = 0;
  std::uint64_t random = 1;
  double now = 0, drift = 1;
  std::vector<int> samples, starts;

  SearchBench bench() {
    samples.assign(us.size(), 0);
    return {.sample = [this](std::size_t i, int starts_now) -> Result<double> {
              random = random * 6364136223846793005u + 1442695040888963407u;
              const double noise = 1 + jitter * (static_cast<double>(random >> 40) / (1 << 23) - 1);
              drift += drift_per_sample;
              ++samples[i];
              starts.push_back(starts_now);
              now += us[i] * 1e-6 * starts_now;
              if (us[i] < 0) return Error{ErrorKind::Driver, "launch failed", {}};
              return us[i] * noise * drift;
            },
            .seconds = [this] { return now; },
            .round_done = {}};
  }
};

SearchOptions quick() {
  SearchOptions options;
  options.warm_up_seconds = 0;
  return options;
}

// By the rule of tunings: of those that were measured to the end and tie with the fastest, the first.
std::size_t best_of(const SearchResult& found) {
  std::vector<double> us;
  for (const SearchSubject& each : found.subjects) us.push_back(each.state == State::Measured ? each.us : 0);
  return first_of_fastest(us, tie_of(found.noise));
}

TEST(Search, FindsTheFastestAndStopsTheHopeless) {
  FakeBench fake{.us = {200, 100, 101.5, 150}, .jitter = 0.002};
  const auto found = search(4, 0, fake.bench(), quick());
  ASSERT_TRUE(found);
  EXPECT_EQ(best_of(*found), 1u);
  EXPECT_EQ(found->subjects[0].state, State::Measured);  // the reference stays, however slow
  EXPECT_EQ(found->subjects[2].state, State::Stopped);   // 1.5 % is beyond the noise
  EXPECT_EQ(found->subjects[3].state, State::Stopped);
  EXPECT_LE(fake.samples[3], 3);  // in the warm-up
  EXPECT_NEAR(found->subjects[1].us, 100, 0.5);
  EXPECT_LE(found->subjects[1].us_low, found->subjects[1].us);
  EXPECT_GE(found->subjects[1].us_high, found->subjects[1].us);
}

TEST(Search, TiesAreDecidedByOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FakeBench fake{.us = {130, 100, 100.2, 99.9}, .jitter = 0.01, .random = seed};
    SearchOptions options = quick();
    options.seed = seed;
    const auto found = search(4, 0, fake.bench(), options);
    ASSERT_TRUE(found);
    EXPECT_EQ(best_of(*found), 1u) << "seed " << seed;
  }
}

TEST(Search, DriftTouchesAllAlike) {
  // 0.05 % slower with every sample: after 40 rounds all take half as long again, but ratios within a round hold.
  FakeBench fake{.us = {110, 100, 104}, .jitter = 0.001, .drift_per_sample = 0.0005};
  const auto found = search(3, 0, fake.bench(), quick());
  ASSERT_TRUE(found);
  EXPECT_EQ(best_of(*found), 1u);
  EXPECT_LT(found->noise, 0.02);
}

// The clock falls by half while the search runs: a median of one's own samples says when one ran, not how fast one is.
TEST(Search, WhatWasStoppedEarlyIsNeverShownAsFaster) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    FakeBench fake{.us = {100, 104, 108, 99, 112, 125, 180, 101},
                   .jitter = 0.02,
                   .drift_per_sample = 0.005,
                   .random = seed * 7919};
    SearchOptions options = quick();
    options.seed = seed;
    const auto found = search(8, 0, fake.bench(), options);
    ASSERT_TRUE(found);
    double fastest = found->subjects[0].us;
    int stopped = 0;
    for (const SearchSubject& each : found->subjects) {
      if (each.state == State::Measured) fastest = std::min(fastest, each.us);
    }
    for (const SearchSubject& each : found->subjects) {
      EXPECT_LE(each.us_low, each.us);
      EXPECT_GE(each.us_high, each.us);
      if (each.state != State::Stopped) continue;
      ++stopped;
      EXPECT_GT(each.us, fastest) << "seed " << seed << ": " << each.why;
    }
    EXPECT_GT(stopped, 2) << "seed " << seed;
    EXPECT_LE(found->subjects[best_of(*found)].us, fastest * (1 + tie_of(found->noise))) << "seed " << seed;
  }
}

TEST(Search, OfThoseThatTieTheFirst) {
  const double us[] = {0, 103, 101.5, 100, 104};
  EXPECT_EQ(first_of_fastest(us, 0), 3u);
  EXPECT_EQ(first_of_fastest(us, 0.016), 2u);
  EXPECT_EQ(first_of_fastest(us, 0.05), 1u);
  EXPECT_EQ(tie_of(0.013), 0.013);
  EXPECT_EQ(tie_of(0.3), 0.02);
}

TEST(Search, NoiseIsThatOfAKernelAgainstItself) {
  FakeBench calm{.us = {100}, .jitter = 0.0}, loud{.us = {100}, .jitter = 0.2};
  const auto quiet = search(1, 0, calm.bench(), quick()), noisy = search(1, 0, loud.bench(), quick());
  ASSERT_TRUE(quiet && noisy);
  EXPECT_DOUBLE_EQ(quiet->noise, SearchOptions().least_noise);
  EXPECT_GT(noisy->noise, 0.01);
  EXPECT_EQ(noisy->rounds, SearchOptions().max_rounds);  // it goes on as long as that may help
}

TEST(Search, AFailingSubjectIsMarkedAndAFailingReferenceIsAnError) {
  FakeBench fake{.us = {100, -1, 90}};
  const auto found = search(3, 0, fake.bench(), quick());
  ASSERT_TRUE(found);
  EXPECT_EQ(best_of(*found), 2u);
  EXPECT_EQ(found->subjects[1].state, State::Failed);
  EXPECT_EQ(found->subjects[1].why, "launch failed");
  FakeBench broken{.us = {-1, 90}};
  EXPECT_FALSE(search(2, 0, broken.bench(), quick()));
}

TEST(Search, TimesThatAreNotPositiveAreNoTimes) {
  int calls = 0;
  SearchBench bench{.sample = [&](std::size_t, int) -> Result<double> { return ++calls % 4 == 0 ? -3.0 : 50.0; },
                    .seconds = [] { return 0.0; },
                    .round_done = {}};
  const auto found = search(2, 0, bench, quick());
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->subjects[0].us_low, 50);
  bench.sample = [](std::size_t, int) -> Result<double> { return std::nan(""); };
  EXPECT_FALSE(search(2, 0, bench, quick()));
}

TEST(Search, ShortKernelsAreStartedSeveralTimesPerSample) {
  FakeBench fast{.us = {4, 5}}, slow{.us = {400, 500}};
  ASSERT_TRUE(search(2, 0, fast.bench(), quick()));
  ASSERT_TRUE(search(2, 0, slow.bench(), quick()));
  EXPECT_EQ(fast.starts.back(), 15);
  EXPECT_EQ(slow.starts.back(), 1);
}

TEST(Search, TheBudgetEndsIt) {
  FakeBench fake{.us = {1e6, 1.001e6, 1.002e6}, .jitter = 0.01};
  SearchOptions options = quick();
  options.seconds = 10;
  const auto found = search(3, 0, fake.bench(), options);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rounds, 3);  // the least there must be
}

TEST(Search, IntervalsAreOrderStatistics) {
  const MedianInterval few = median_interval({3, 1, 2});
  EXPECT_DOUBLE_EQ(few.median, 2);
  EXPECT_DOUBLE_EQ(few.low, 1);
  EXPECT_DOUBLE_EQ(few.high, 3);
  std::vector<double> many;
  for (int i = 1; i <= 100; ++i) many.push_back(i);
  const MedianInterval wide = median_interval(many);
  EXPECT_DOUBLE_EQ(wide.median, 50.5);
  EXPECT_DOUBLE_EQ(wide.low, 41);  // the binomial table's 95 % ranks for 100 are 40 or 41 and 60 or 61
  EXPECT_DOUBLE_EQ(wide.high, 60);
}

}  // namespace
}  // namespace flashjit
