#include "autotune/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace flashjit {
namespace {

using Clock = std::chrono::steady_clock;
using Sample = std::function<Result<double>(const Launch&)>;  // microseconds

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Result<std::vector<Timing>> measure(const std::vector<Launch>& subjects, const MeasureOptions& options, const Sample& sample,
                                    const RoundDone& round_done) {
  const auto start = Clock::now();
  const double budget = options.seconds * static_cast<double>(subjects.size());
  for (int i = 0; i < options.warm_up; ++i) {
    for (const Launch& launch : subjects) FLASHJIT_TRY(sample(launch));
    if (round_done) round_done(seconds_since(start));
    if (i > 0 && seconds_since(start) > budget / 4) break;  // a slow subject is warm after one run
  }
  std::vector<std::vector<double>> samples(subjects.size());
  const auto first_round = Clock::now();
  for (int round = 0; round < options.max_rounds; ++round) {
    if (round >= options.min_rounds && seconds_since(first_round) > budget) break;
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      FLASHJIT_ASSIGN(us, sample(subjects[i]));
      samples[i].push_back(us);
    }
    if (round_done) round_done(seconds_since(start));
  }
  std::vector<Timing> timings;
  for (const auto& own : samples) {
    timings.push_back({percentile(own, 0.5), percentile(own, 0.1), percentile(own, 0.9), static_cast<int>(own.size())});
  }
  return timings;
}

}  // namespace

double percentile(std::vector<double> samples, double fraction) {
  std::sort(samples.begin(), samples.end());
  const double place = fraction * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (samples[above] - samples[below]) * (place - static_cast<double>(below));
}

Result<std::vector<Timing>> measure_host(const std::vector<Launch>& subjects, const MeasureOptions& options,
                                         const RoundDone& round_done) {
  const auto sample = [](const Launch& launch) -> Result<double> {
    const auto start = Clock::now();
    FLASHJIT_TRY(launch());
    return seconds_since(start) * 1e6;
  };
  return measure(subjects, options, sample, round_done);
}

Result<std::vector<Timing>> measure_gpu(const GpuContext& gpu, const Stream& stream, std::size_t l2_bytes,
                                        const std::vector<Launch>& subjects, const MeasureOptions& options,
                                        const RoundDone& round_done) {
  // Twice the cache: its replacement is not strictly least-recently-used.
  FLASHJIT_ASSIGN(flush, DeviceBuffer::allocate(gpu, std::max<std::size_t>(2 * l2_bytes, std::size_t{64} << 20)));
  FLASHJIT_ASSIGN(begin, Event::create(gpu));
  FLASHJIT_ASSIGN(end, Event::create(gpu));
  const auto sample = [&](const Launch& launch) -> Result<double> {
    // The flush also keeps the GPU busy while the host queues the launch, so launch time is not counted.
    FLASHJIT_TRY(flush.fill(0, stream.get()));
    FLASHJIT_TRY(begin.record(stream));
    FLASHJIT_TRY(launch());
    FLASHJIT_TRY(end.record(stream));
    FLASHJIT_ASSIGN(ms, end.milliseconds_since(begin));
    return static_cast<double>(ms) * 1e3;
  };
  return measure(subjects, options, sample, round_done);
}

}  // namespace flashjit
