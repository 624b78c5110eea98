// Which schedule `prepare` takes when none is pinned: that of a tuning record, or the cost model's for the shape that is hinted at.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "runtime/tuned_records.h"

namespace flashjit {

struct TunedChoice {
  std::string schedule;  // empty: nothing is known; the cost model ranks at its reference shape
  std::string note;      // for Facts::notes
};

// The hint of PrepareOptions::shape in the form that decides: hints that give the same text give the same kernel.
Result<std::string> canonical_hint(std::string_view hint);

// `hint` is canonical. Errors in the spec are left to the compiler to report.
TunedChoice choose_schedule(std::string_view spec, const Machine& machine, const std::vector<TunedRecord>& records, std::string_view hint);

// Measuring is the business of a folder that builds on this one. Where that is linked in, it says here how.
struct TuneRequest {
  std::string spec, shape;
  EngineOptions engine;  // what the engine was created with
  double seconds = 0;
};
using Tuner = Result<TunedRecord> (*)(const TuneRequest& request);
void set_tuner(Tuner tuner);
Tuner tuner();  // null: nothing that could measure is linked in

}  // namespace flashjit
