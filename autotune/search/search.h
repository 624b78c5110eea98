// Finds the fastest of some subjects, honestly. Interleaved rounds in random order contain the best so far, medians
// have intervals, clearly slower subjects are stopped early, and a rule decides between those that cannot be told
// apart. The search knows nothing of kernels: the stopwatch and the clock are given, so tests can fake both.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct SearchOptions {
  double seconds = 5;             // No further round begins after this long, once three are done.
  double warm_up_seconds = 0.15;  // The warm-up runs the same load, so that clocks and temperature settle.
  int min_rounds = 7, max_rounds = 40;
  double least_noise = 0.005;  // Smaller differences are never called differences.
  std::uint64_t seed = 1;      // It seeds the order within rounds.
};

struct SearchBench {
  // Returns the microseconds of one start, as the mean of `starts`.
  std::function<Result<double>(std::size_t subject, int starts)> sample;
  std::function<double()> seconds;                              // Returns the time of a clock.
  std::function<void(std::size_t best, double us)> round_done;  // It may be empty.
};

struct SearchSubject {
  enum class State { Measured, Stopped, Failed };
  State state = State::Measured;
  // The baseline's time is the median of its samples, with the 95 % interval. Times of other subjects follow from
  // ratios to the subject that was the fastest, or was so when they were stopped, in the same rounds. So a subject that
  // was stopped as slower is slower here, too. 0 means Failed.
  double us = 0, us_low = 0, us_high = 0;
  int rounds = 0;
  // True if the subject was measured, and is faster than the baseline for certain: the 95 % interval of the ratios to
  // the baseline lies below 1, and below the interval of the baseline's ratios to itself. Fewer than six rounds make
  // nothing certain.
  bool faster = false;
  std::string why;  // The reason for Stopped and Failed.
};

struct SearchResult {
  std::vector<SearchSubject> subjects;
  // How far apart two measurements of one kernel were found to be. `faster` needs a larger difference.
  double noise = 0;
  int rounds = 0;
};

// Times that differ by less than this share are tied. The share is the noise, but at most 2 %: on a noisier machine the
// times decide, because a rule may not cost more than that.
double tie_of(double noise);
// Returns the index of the first time within `tie` of the least. Times that are 0 do not count, and not all of them are 0.
std::size_t first_of_fastest(std::span<const double> us, double tie);

// `baseline` is never stopped, and runs twice in each round: its difference from itself is the noise. An error of the
// baseline ends the search; other subjects that fail are marked.
Result<SearchResult> search(std::size_t subjects, std::size_t baseline, const SearchBench& bench,
                            const SearchOptions& options);

struct MedianInterval {
  double median = 0, low = 0, high = 0;
};
// Returns the median with the 95 % interval by order statistics. With fewer than six samples the interval is their
// whole range. There must be a sample.
MedianInterval median_interval(std::vector<double> samples);

}  // namespace flashjit
