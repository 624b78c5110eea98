// Finds the fastest of some subjects, honestly: interleaved rounds in random order with the best so far in each,
// medians with intervals, what is clearly slower stopped early, a rule for what cannot be told apart. Knows nothing of
// kernels: the stopwatch and the clock are given, so tests can fake both.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct SearchOptions {
  double seconds = 5;             // no further round is begun after this long, once three are done
  double warm_up_seconds = 0.15;  // of the same load: clocks and temperature settle
  int min_rounds = 7, max_rounds = 40;
  double least_noise = 0.005;  // differences below this are never called one
  std::uint64_t seed = 1;      // of the order within rounds
};

struct SearchBench {
  std::function<Result<double>(std::size_t subject, int starts)> sample;  // microseconds of one start, mean of `starts`
  std::function<double()> seconds;                                        // a clock
  std::function<void(std::size_t best, double us)> round_done;            // may be empty
};

struct SearchSubject {
  enum class State { Measured, Stopped, Failed };
  State state = State::Measured;
  // The baseline's: median of its samples and 95 % interval. All others': by the ratios to the fastest, or to what was
  // that when they were stopped, in the same rounds; so who was stopped as slower is slower here, too. 0: Failed.
  double us = 0, us_low = 0, us_high = 0;
  int rounds = 0;
  // Measured, and faster than the baseline for certain: the 95 % interval of the ratios to it lies below 1, and below
  // that of the baseline to itself. Fewer than six rounds make nothing certain.
  bool faster = false;
  std::string why;  // of Stopped and Failed
};

struct SearchResult {
  std::vector<SearchSubject> subjects;
  double noise = 0;  // how far apart two measurements of one kernel were found to be: the threshold of "faster"
  int rounds = 0;
};

// Times that differ by less than this share are tied: the noise, but at most 2 %. On a machine noisier than that the
// times decide: a rule may not cost more.
double tie_of(double noise);
// Returns the index of the first time within `tie` of the least. Times that are 0 do not count, and not all of them are 0.
std::size_t first_of_fastest(std::span<const double> us, double tie);

// `baseline` is never stopped, and runs twice in each round: how far it differs from itself is the noise. An error is the
// baseline's; other subjects that fail are marked.
Result<SearchResult> search(std::size_t subjects, std::size_t baseline, const SearchBench& bench,
                            const SearchOptions& options);

struct MedianInterval {
  double median = 0, low = 0, high = 0;
};
// By order statistics, 95 %; with fewer than six samples the interval is their whole range. Not empty.
MedianInterval median_interval(std::vector<double> samples);

}  // namespace flashjit
