// The search with a stopwatch and a clock that are made up.
#include "autotune/search/search.h"

#include "autotune/search/tune.h"

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
  EXPECT_EQ(found->subjects[0].state, State::Measured);  // the baseline stays, however slow
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

// A machine on which every other sample takes up to seven times as long: nine kernels of one speed.
TEST(Search, NoiseMakesNobodyFaster) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    FakeBench fake{.us = std::vector<double>(9, 100)};
    SearchBench bench = fake.bench();
    std::uint64_t state = seed;
    bench.sample = [&, quiet = bench.sample](std::size_t i, int starts) -> Result<double> {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const double busy = (state >> 63) != 0 ? 1 + 6 * static_cast<double>((state >> 33) & 0xffff) / 0xffff : 1;
      auto us = quiet(i, starts);
      return *us * busy;
    };
    SearchOptions options = quick();
    options.seed = seed;
    options.seconds = seed % 2 == 0 ? 5 : 1e-3;  // many rounds, and as few as there can be
    const auto found = search(9, 0, bench, options);
    ASSERT_TRUE(found);
    for (const SearchSubject& each : found->subjects) EXPECT_FALSE(each.faster) << "seed " << seed;
  }
}

TEST(Search, WhatIsFasterIsSoInSpiteOfSomeNoise) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FakeBench fake{.us = {100, 90, 100.1, 110}, .jitter = 0.03, .random = seed};
    const auto found = search(4, 0, fake.bench(), quick());
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->subjects[1].faster) << "seed " << seed;
    for (const std::size_t other : {0, 2, 3}) EXPECT_FALSE(found->subjects[other].faster) << "seed " << seed;
  }
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

TuneOutcome outcome_of(std::vector<double> us, std::vector<bool> faster, double noise) {
  TuneOutcome outcome;
  for (std::size_t i = 0; i < us.size(); ++i)
    outcome.candidates.push_back({.status = "measured", .us = us[i], .faster = faster[i]});
  outcome.untuned = 1;
  outcome.noise = noise;
  outcome.rounds = 7;
  choose_best(outcome);
  return outcome;
}

TEST(TuneOutcome, TheDefaultStaysUnlessAnotherIsCertainlyFaster) {
  // Measured 5.657 times as fast, by noise.
  const TuneOutcome noisy = outcome_of({70, 56.57, 10}, {false, false, false}, 4.15);
  EXPECT_EQ(noisy.best, 1u);
  EXPECT_EQ(noisy.fastest, 2u);
  EXPECT_FALSE(noisy.decided());
  for (const char* says : {"5.66 times", "415.0 %", "7 rounds", "the machine is busy", "the default stays"})
    EXPECT_NE(noisy.why_best().find(says), std::string::npos) << noisy.why_best();
  const TuneOutcome sure = outcome_of({70, 56.57, 10}, {false, false, true}, 0.05);
  EXPECT_EQ(sure.best, 2u);
  EXPECT_TRUE(sure.decided());
  // One that may be faster still does not take the place of one that is for certain, and is named.
  const TuneOutcome second = outcome_of({50, 56.57, 40}, {true, false, false}, 0.05);
  EXPECT_EQ(second.best, 0u);
  EXPECT_TRUE(second.decided());
  EXPECT_NE(second.why_best().find("for certain"), std::string::npos) << second.why_best();
  // It is known that the default is the fastest where nothing else is faster and the machine is calm.
  EXPECT_TRUE(outcome_of({70, 56.57, 56}, {false, false, false}, 0.02).decided());
  EXPECT_FALSE(outcome_of({70, 56.57, 60}, {false, false, false}, 1.5).decided());
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
