#include "autotune/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "autotune/measure/measure.h"

namespace flashjit {
namespace {

using State = SearchSubject::State;

constexpr double kShortUs = 20;   // Shorter subjects are started several times per sample.
constexpr double kSampleUs = 60;  // Such a sample then takes about this long.
constexpr int kMostStarts = 16;
constexpr int kWarmUpRounds = 2;  // At least this number of rounds warm up.
// A subject that is so much slower than the fastest in the warm-up is stopped, although clocks still move there.
constexpr double kHopeless = 1.4;
constexpr int kFirstJudgement = 3;  // The first judgement comes after this number of rounds.
constexpr int kCertainRounds = 6;   // Fewer samples have no interval of 95 %.
constexpr int kRetries = 3;         // A sample that is no time is repeated at most this often.
constexpr double kMostTie = 0.02;

class Search {
 public:
  Search(std::size_t count, std::size_t baseline, const SearchBench& bench, const SearchOptions& options)
      : baseline_(baseline),
        bench_(bench),
        options_(options),
        samples_(count + 1),
        warm_us_(count, 0),
        random_(options.seed) {
    result_.subjects.resize(count);
  }

  Result<SearchResult> run() {
    start_ = bench_.seconds();
    FLASHJIT_TRY(warm_up());
    while (!finished()) {
      FLASHJIT_TRY(round());
      judge();
      if (bench_.round_done) bench_.round_done(best_, median_interval(samples_[best_]).median);
    }
    conclude();
    return std::move(result_);
  }

 private:
  std::size_t twin() const { return samples_.size() - 1; }
  bool alive(std::size_t i) const { return result_.subjects[i].state == State::Measured; }
  double elapsed() const { return bench_.seconds() - start_; }

  // A time that is not positive is no time. Event timers return such under some hypervisors.
  Result<double> sample(std::size_t subject, int starts) {
    for (int i = 0; i < kRetries; ++i) {
      FLASHJIT_ASSIGN(us, bench_.sample(subject, starts));
      if (std::isfinite(us) && us > 0) return us;
    }
    return Error{ErrorKind::Driver,
                 fmt::format("{} samples in a row were not positive: this machine's timer cannot be used", kRetries),
                 {}};
  }

  // Returns nothing if the subject failed; the failure is noted.
  Result<std::optional<double>> try_sample(std::size_t subject, int starts) {
    const bool is_baseline = subject == twin() || subject == baseline_;
    auto us = sample(is_baseline ? baseline_ : subject, starts);
    if (us) return std::optional<double>(*us);
    if (is_baseline) return us.error();
    result_.subjects[subject].state = State::Failed;
    result_.subjects[subject].why = us.error().message;
    return std::optional<double>();
  }

  Result<void> warm_up() {
    for (int round = 0; round < kWarmUpRounds || elapsed() < options_.warm_up_seconds; ++round) {
      for (std::size_t i = 0; i < result_.subjects.size(); ++i) {
        if (!alive(i)) continue;
        FLASHJIT_ASSIGN(us, try_sample(i, 1));
        if (us) warm_us_[i] = warm_us_[i] > 0 ? std::min(warm_us_[i], *us) : *us;
      }
      if (round > 0 && elapsed() > options_.seconds / 4) break;  // Slow subjects are warm after one run.
    }
    best_ = baseline_;
    for (std::size_t i = 0; i < warm_us_.size(); ++i) {
      if (alive(i) && warm_us_[i] < warm_us_[best_]) best_ = i;
    }
    const double fastest = warm_us_[best_];
    for (std::size_t i = 0; i < warm_us_.size(); ++i) {
      const double ratio = warm_us_[i] / fastest;
      if (alive(i) && i != baseline_ && ratio > kHopeless) stop(i, {ratio, ratio, ratio}, "in the warm-up");
    }
    if (fastest < kShortUs) starts_ = std::min(kMostStarts, static_cast<int>(std::ceil(kSampleUs / fastest)));
    return {};
  }

  void stop(std::size_t i, const MedianInterval& over_best, const std::string& when) {
    result_.subjects[i].state = State::Stopped;
    result_.subjects[i].why = fmt::format("{:.0f} % slower than the best {}", (over_best.median - 1) * 100, when);
    stopped_.push_back({i, best_, over_best});
  }

  Result<void> round() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < result_.subjects.size(); ++i) {
      if (alive(i)) order.push_back(i);
    }
    order.push_back(twin());
    for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[next_random() % (i + 1)]);
    for (const std::size_t i : order) {
      FLASHJIT_ASSIGN(us, try_sample(i, starts_));
      if (us) samples_[i].push_back(*us);
    }
    ++result_.rounds;
    return {};
  }

  std::uint64_t next_random() {  // The generator is splitmix64.
    std::uint64_t z = (random_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Returns the ratios of two subjects round by round, for the rounds in which both ran.
  std::vector<double> ratios(std::size_t a, std::size_t b) const {
    std::vector<double> out;
    for (std::size_t r = 0; r < std::min(samples_[a].size(), samples_[b].size()); ++r)
      out.push_back(samples_[a][r] / samples_[b][r]);
    return out;
  }

  double noise() const {
    const MedianInterval aa = median_interval(ratios(twin(), baseline_));
    return std::max({std::abs(aa.median - 1), (aa.high - aa.low) / 2, options_.least_noise});
  }

  // Returns the subject with the lowest median of ratios to the baseline.
  std::size_t fastest() const {
    std::size_t best = baseline_;
    double least = 1;
    for (std::size_t i = 0; i < result_.subjects.size(); ++i) {
      if (!alive(i) || i == baseline_) continue;
      const double ratio = median_interval(ratios(i, baseline_)).median;
      if (ratio < least) least = ratio, best = i;
    }
    return best;
  }

  void judge() {
    result_.noise = noise();
    best_ = fastest();
    settled_ = true;
    if (result_.rounds < kFirstJudgement) {
      settled_ = false;
      return;
    }
    // The range of few samples says less, so the margin is wider.
    const double margin = result_.noise * (result_.rounds < kCertainRounds ? 2 : 1);
    for (std::size_t i = 0; i < result_.subjects.size(); ++i) {
      if (!alive(i) || i == best_) continue;
      const MedianInterval ratio = median_interval(ratios(i, best_));
      if (i != baseline_ && ratio.low > 1 + margin) {
        stop(i, ratio, fmt::format("after {} rounds", result_.rounds));
      } else if (ratio.low <= 1 + result_.noise && ratio.high > 1 + result_.noise) {
        settled_ = false;  // It is open whether the subject is tied with the best.
      }
    }
    if (result_.noise > 2 * options_.least_noise) settled_ = false;
  }

  bool finished() const {
    if (result_.rounds >= options_.max_rounds) return true;
    if (result_.rounds >= kFirstJudgement && elapsed() > options_.seconds) return true;
    return result_.rounds >= options_.min_rounds && settled_;
  }

  void set_time(std::size_t i, double fastest_us, const MedianInterval& over_fastest) {
    SearchSubject& subject = result_.subjects[i];
    subject.us = fastest_us * over_fastest.median;
    subject.us_low = fastest_us * over_fastest.low, subject.us_high = fastest_us * over_fastest.high;
  }

  bool certainly_faster(std::size_t i, double bound) const {
    return alive(i) && i != baseline_ && result_.rounds >= kCertainRounds &&
           median_interval(ratios(i, baseline_)).high < bound;
  }

  void conclude() {
    const MedianInterval own = median_interval(samples_[baseline_]);
    SearchSubject& baseline = result_.subjects[baseline_];
    baseline.us = own.median, baseline.us_low = own.low, baseline.us_high = own.high;
    if (best_ != baseline_) set_time(best_, own.median, median_interval(ratios(best_, baseline_)));
    const double bound = std::min(1.0, median_interval(ratios(twin(), baseline_)).low);
    for (std::size_t i = 0; i < result_.subjects.size(); ++i) {
      result_.subjects[i].rounds = static_cast<int>(samples_[i].size());
      result_.subjects[i].faster = certainly_faster(i, bound);
      if (alive(i) && i != best_ && i != baseline_)
        set_time(i, result_.subjects[best_].us, median_interval(ratios(i, best_)));
    }
    // The last stop comes first, because the subject that was the best then may have been stopped later, or failed.
    for (auto at = stopped_.rbegin(); at != stopped_.rend(); ++at) {
      const double best_us = result_.subjects[at->best].us;
      set_time(at->subject, best_us > 0 ? best_us : own.median, at->over_best);
    }
  }

  struct Stop {
    std::size_t subject, best;
    MedianInterval over_best;
  };

  const std::size_t baseline_;
  const SearchBench& bench_;
  const SearchOptions& options_;
  SearchResult result_;
  std::vector<std::vector<double>> samples_;  // Samples per subject and round; the last subject is the baseline's twin.
  std::vector<double> warm_us_;               // The least time of each subject in the warm-up.
  std::vector<Stop> stopped_;                 // The stops, in the order in which they happened.
  std::uint64_t random_;
  std::size_t best_ = 0;
  int starts_ = 1;
  double start_ = 0;
  bool settled_ = false;
};

}  // namespace

MedianInterval median_interval(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double n = static_cast<double>(samples.size());
  const auto rank = static_cast<std::size_t>(std::max(0.0, std::floor((n - 1.96 * std::sqrt(n)) / 2)));
  return {percentile(samples, 0.5), samples[rank], samples[samples.size() - 1 - rank]};
}

double tie_of(double noise) { return std::min(noise, kMostTie); }

std::size_t first_of_fastest(std::span<const double> us, double tie) {
  double least = std::numeric_limits<double>::infinity();
  for (const double each : us) least = each > 0 ? std::min(least, each) : least;
  const auto first = std::ranges::find_if(us, [&](double each) { return each > 0 && each <= least * (1 + tie); });
  return static_cast<std::size_t>(first - us.begin());
}

Result<SearchResult> search(std::size_t subjects, std::size_t baseline, const SearchBench& bench,
                            const SearchOptions& options) {
  return Search(subjects, baseline, bench, options).run();
}

}  // namespace flashjit
