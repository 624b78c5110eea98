// This file says how kernels are timed. Several subjects are measured in interleaved rounds, so that clocks, temperature and
// neighbours touch all of them alike; the median and the 10th and 90th percentile of the rounds are reported.
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
  double seconds = 1.0;  // stop after this long per subject, once min_rounds are done
};

struct Timing {
  double us = 0, us_p10 = 0, us_p90 = 0;
  int rounds = 0;
};

// Starts the work; on the host it is done on return, on a GPU it is on the stream that measure_gpu was given.
using Launch = std::function<Result<void>()>;
using RoundDone = std::function<void(double seconds)>;  // for progress; the total so far

Result<std::vector<Timing>> measure_host(const std::vector<Launch>& subjects, const MeasureOptions& options,
                                         const RoundDone& round_done = {});

// One sample: the microseconds of a launch, taken as the mean of `starts` of them one after the other (what is shorter
// than the clock's steps needs several).
using Sampler = std::function<Result<double>(const Launch& launch, int starts)>;
Sampler host_sampler();
Result<Sampler> gpu_sampler(const GpuContext& gpu, const Stream& stream, std::size_t l2_bytes);

// Between two samples the L2 cache is overwritten, outside of the timed region: a model's other layers do the same to
// the inputs of an attention call.
Result<std::vector<Timing>> measure_gpu(const GpuContext& gpu, const Stream& stream, std::size_t l2_bytes,
                                        const std::vector<Launch>& subjects, const MeasureOptions& options,
                                        const RoundDone& round_done = {});

// Value at `fraction` (0..1) of the sorted samples, interpolated between neighbours. Not empty.
double percentile(std::vector<double> samples, double fraction);

}  // namespace flashjit
