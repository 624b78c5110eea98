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
  InputFiles inputs;           // what is not given is drawn at random
  std::vector<Schedule> also;  // measured too if they are legal: earlier winners, records from elsewhere
};

struct TuneOptions {
  double seconds = 10;      // for compiling and measuring one job; what is begun is finished
  int jobs = 0;             // threads that compile; 0: all cores
  bool exhaustive = false;  // every legal schedule that is predicted within 1.5 times the first choice's time
  std::uint64_t seed = 1;
  bool verify = true;  // the default kernel is tried against the reference, small; all others are held against it
  // Called with the default kernel's outputs in the data, before anything is timed; an error ends the job.
  std::function<Result<void>(const AttentionSpec&, const Facts&, ProblemData&)> check;
  std::function<void(const std::string& what)> progress;
};

struct TunedCandidate {
  Schedule schedule;
  double predicted_us = 0;
  std::string status;  // measured, stopped (clearly slower), failed, spills, wrong
  double us = 0, us_low = 0, us_high = 0;
  int registers = 0, smem_bytes = 0;
  bool listed = false;  // the compiler enumerates it; others are near to the best so far, or won earlier
  bool faster = false;  // than the default, for certain (SearchSubject)
  std::string why;      // of every status but measured
  bool timed() const { return us > 0; }
};

struct TuneOutcome {
  AttentionSpec spec;
  ProblemShape shape;
  double flops = 0, bytes = 0;
  std::size_t untuned = 0, first_choice = 0, best = 0, fastest = 0;  // indices into candidates
  std::vector<TunedCandidate> candidates;                            // in the model's order: what was compiled
  double noise = 0;
  int rounds = 0;  // of the last search
  int space = 0, legal = 0;
  std::vector<CutReason> cut;
  GpuState before, after;
  double compile_seconds = 0, measure_seconds = 0;

  const TunedCandidate& of(std::size_t i) const { return candidates[i]; }
  double regret() const { return candidates[first_choice].us / candidates[best].us - 1; }
  std::string why_best() const;  // the fastest, or what decided against that
  // Says whether it is known what is fastest. If not, the default is the best, and no record is made.
  bool decided() const;
  double gain_of(std::size_t i) const { return candidates[untuned].us / candidates[i].us; }
};

// In two steps, so that one job can be compiled while another is measured: `compile` needs the processor, `measure` the
// device too.
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

// `best` and `fastest`, from what the candidates were measured to be. The best is the default, unless another is certainly
// faster than that; of such, what ties with the fastest of them and is first in the model's order.
void choose_best(TuneOutcome& outcome);

std::string today();  // year, month and day, with hyphens
// Makes the record of a decided outcome for the session's machine.
TunedRecord record_of(const TuneOutcome& outcome, const Machine& machine, const std::string& date);

}  // namespace flashjit
