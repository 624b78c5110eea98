// Several kernels are timed in interleaved rounds, so that clocks, temperature and neighbours touch all of them alike.
// The median and the 10th and 90th percentile of the rounds are reported.
#pragma once

#include <functional>
#include <vector>

#include "compiler/result.h"
#include "runtime/driver/device_memory.h"

namespace flashjit {

struct MeasureOptions {
  int warm_up = 3;  // runs of each subject before the first that counts
  int min_rounds = 5;
  int max_rounds = 200;
  double seconds = 1.0;  // Measuring stops after this long per subject, once min_rounds are done.
};

struct Timing {
  double us = 0, us_p10 = 0, us_p90 = 0;
  int rounds = 0;
};

// Starts the work. On the host it is done on return; on a GPU it is on the stream that measure_gpu was given.
using Launch = std::function<Result<void>()>;
// It shows progress, and gets the total time so far.
using RoundDone = std::function<void(double seconds)>;

Result<std::vector<Timing>> measure_host(const std::vector<Launch>& subjects, const MeasureOptions& options,
                                         const RoundDone& round_done = {});

// Takes one sample: the microseconds of a launch, as the mean of `starts` launches one after the other. Launches that
// are shorter than the clock's steps need several.
using Sampler = std::function<Result<double>(const Launch& launch, int starts)>;
Sampler host_sampler();
Result<Sampler> gpu_sampler(const GpuContext& gpu, const Stream& stream, std::size_t l2_bytes);

// Between two samples the L2 cache is overwritten, outside of the timed region: a model's other layers do the same to
// the inputs of an attention call.
Result<std::vector<Timing>> measure_gpu(const GpuContext& gpu, const Stream& stream, std::size_t l2_bytes,
                                        const std::vector<Launch>& subjects, const MeasureOptions& options,
                                        const RoundDone& round_done = {});

// Returns the value at `fraction` (0..1) of the sorted samples, interpolated between neighbours. There must be samples.
double percentile(std::vector<double> samples, double fraction);

}  // namespace flashjit
