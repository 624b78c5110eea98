#include "autotune/measure/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

namespace flashjit {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Result<std::vector<Timing>> measure(const std::vector<Launch>& subjects, const MeasureOptions& options,
                                    const Sampler& sample, const RoundDone& round_done) {
  const auto start = Clock::now();
  const double budget = options.seconds * static_cast<double>(subjects.size());
  for (int i = 0; i < options.warm_up; ++i) {
    for (const Launch& launch : subjects) FLASHJIT_TRY(sample(launch, 1));
    if (round_done) round_done(seconds_since(start));
    if (i > 0 && seconds_since(start) > budget / 4) break;  // A slow subject is warm after one run.
  }
  std::vector<std::vector<double>> samples(subjects.size());
  const auto first_round = Clock::now();
  for (int round = 0; round < options.max_rounds; ++round) {
    if (round >= options.min_rounds && seconds_since(first_round) > budget) break;
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      FLASHJIT_ASSIGN(us, sample(subjects[i], 1));
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
  const double rank = fraction * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(rank));
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (samples[above] - samples[below]) * (rank - static_cast<double>(below));
}

Sampler host_sampler() {
  return [](const Launch& launch, int starts) -> Result<double> {
    const auto start = Clock::now();
    for (int i = 0; i < starts; ++i) FLASHJIT_TRY(launch());
    return seconds_since(start) * 1e6 / starts;
  };
}

Result<Sampler> gpu_sampler(const GpuContext& gpu, const Stream& stream, std::size_t l2_bytes) {
  struct Tools {
    DeviceBuffer flush;
    Event begin, end;
  };
  // The buffer is twice the cache, because the cache's replacement is not strictly least-recently-used.
  FLASHJIT_ASSIGN(flush, DeviceBuffer::allocate(gpu, std::max<std::size_t>(2 * l2_bytes, std::size_t{64} << 20)));
  FLASHJIT_ASSIGN(begin, Event::create(gpu));
  FLASHJIT_ASSIGN(end, Event::create(gpu));
  const auto tools = std::make_shared<Tools>(Tools{std::move(flush), std::move(begin), std::move(end)});
  return Sampler([tools, &stream](const Launch& launch, int starts) -> Result<double> {
    // The flush also keeps the GPU busy while the host queues the launch, so launch time is not counted.
    FLASHJIT_TRY(tools->flush.fill(0, stream.get()));
    FLASHJIT_TRY(tools->begin.record(stream));
    for (int i = 0; i < starts; ++i) FLASHJIT_TRY(launch());
    FLASHJIT_TRY(tools->end.record(stream));
    FLASHJIT_ASSIGN(ms, tools->end.milliseconds_since(tools->begin));
    return static_cast<double>(ms) * 1e3 / starts;
  });
}

Result<std::vector<Timing>> measure_host(const std::vector<Launch>& subjects, const MeasureOptions& options,
                                         const RoundDone& round_done) {
  return measure(subjects, options, host_sampler(), round_done);
}

Result<std::vector<Timing>> measure_gpu(const GpuContext& gpu, const Stream& stream, std::size_t l2_bytes,
                                        const std::vector<Launch>& subjects, const MeasureOptions& options,
                                        const RoundDone& round_done) {
  FLASHJIT_ASSIGN(sampler, gpu_sampler(gpu, stream, l2_bytes));
  return measure(subjects, options, sampler, round_done);
}

}  // namespace flashjit
