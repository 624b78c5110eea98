// Finds the fastest schedule of a spec for a shape on a session's device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autotune/measure/check_outputs.h"
#include "autotune/measure/problem.h"
#include "autotune/search/search.h"
#include "autotune/search/session.h"
#include "autotune/measure/shape.h"
#include "autotune/search/space.h"

namespace flashjit {

struct TuneJob {
  AttentionSpec spec;
  ProblemShape shape;
  Schedule pins;
  InputFiles inputs;           // Inputs that are not given are drawn at random.
  std::vector<Schedule> also;  // These are measured too if they are legal: earlier winners, and records from elsewhere.
};

struct TuneOptions {
  double seconds = 10;  // The time for compiling and measuring one job. Work that has begun is finished.
  int jobs = 0;         // The number of threads that compile; 0 means all cores.
  // If true, every legal schedule is measured whose predicted time is within 1.5 times the first choice's.
  bool exhaustive = false;
  std::uint64_t seed = 1;
  // If true, the default kernel is tried against the reference with small data, and all others are held against its
  // results.
  bool verify = true;
  // This is called with the default kernel's outputs in the data, before anything is timed. An error ends the job.
  std::function<Result<void>(const AttentionSpec&, const Facts&, ProblemData&)> check;
  std::function<void(const std::string& what)> progress;
};

struct TunedCandidate {
  Schedule schedule;
  double predicted_us = 0;
  std::string status;  // It is measured, stopped (clearly slower), failed, spills or wrong.
  double us = 0, us_low = 0, us_high = 0;
  int registers = 0, smem_bytes = 0;
  bool listed = false;  // True if the compiler enumerates it. The others are near the best so far, or won earlier.
  bool faster = false;  // True if it is faster than the default, for certain (SearchSubject).
  std::string why;      // The reason for every status but measured.
  bool timed() const { return us > 0; }
};

struct TuneOutcome {
  AttentionSpec spec;
  ProblemShape shape;
  double flops = 0, bytes = 0;
  std::size_t untuned = 0, first_choice = 0, best = 0, fastest = 0;  // These are indices into `candidates`.
  std::vector<TunedCandidate> candidates;                            // The compiled schedules, in the model's order.
  double noise = 0;
  int rounds = 0;  // The rounds of the last search.
  int space = 0, legal = 0;
  std::vector<CutReason> cut;
  GpuState before, after;
  double compile_seconds = 0, measure_seconds = 0;

  const TunedCandidate& of(std::size_t i) const { return candidates[i]; }
  double regret() const { return candidates[first_choice].us / candidates[best].us - 1; }
  std::string why_best() const;  // Returns "the fastest", or what decided against the fastest.
  // Returns whether it is known which candidate is fastest. If not, the default is the best, and no record is made.
  bool decided() const;
  double gain_of(std::size_t i) const { return candidates[untuned].us / candidates[i].us; }
};

// A tuning has two steps, so that one job can be compiled while another is measured: `compile` needs the processor,
// `measure` the device too.
class Tuning {
 public:
  static Result<std::unique_ptr<Tuning>> compile(Session& session, TuneJob job, const TuneOptions& options);
  Result<TuneOutcome> measure();
  ~Tuning();

 private:
  class State;
  explicit Tuning(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

Result<TuneOutcome> tune(Session& session, TuneJob job, const TuneOptions& options);

// Sets `best` and `fastest` from the candidates' measurements. The best is the default, unless others are certainly
// faster than the default. Among the latter it is the first in the model's order that ties with the fastest.
void choose_best(TuneOutcome& outcome);

std::string today();  // Returns year, month and day, with hyphens.
// Makes the record of a decided outcome for the session's machine.
TunedRecord record_of(const TuneOutcome& outcome, const Machine& machine, const std::string& date);

}  // namespace flashjit
