// Which schedule `prepare` takes when none is pinned: that of a tuning record, or the cost model's for the shape that
// is hinted at; and the tuning that a prepare may ask for.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "runtime/tuned/records.h"

namespace flashjit {

struct TunedChoice {
  std::string schedule;  // empty: nothing is known; the cost model ranks at its reference shape
  std::string note;      // for Facts::notes
};

// The hint of PrepareOptions::shape in the form that decides: hints that give the same text give the same kernel.
Result<std::string> canonical_hint(std::string_view hint);

// The cost model's choice for a problem of known (rounded) sizes; empty: the plan's own.
std::string schedule_for(const Plan& plan, const Shape& shape);

// What an engine knows of tunings.
class TunedSchedules {
 public:
  // `store_path`: where records are kept, besides those that came with the library; may be empty.
  TunedSchedules(Machine machine, std::string store_path, const EngineOptions& options)
      : machine_(std::move(machine)), store_path_(std::move(store_path)), options_(options) {}

  // `hint` is canonical.
  TunedChoice choose(const AttentionSpec& spec, std::string_view hint);
  // As PrepareOptions::tune says: makes a record, unless there is one of this class.
  Result<void> tune(std::string_view spec, const PrepareOptions& options);

 private:
  // Of one spec.
  std::vector<TunedRecord> records(std::string_view spec);

  const Machine machine_;
  const std::string store_path_;
  const EngineOptions options_;  // what the engine was created with
  std::mutex mutex_;
  std::optional<std::string> lines_;  // of all records; none: not read yet
};

// Measuring is the business of a folder that builds on this one. Where that is linked in, it says here how.
struct TuneRequest {
  std::string spec, shape;
  EngineOptions engine;  // what the engine was created with
  double seconds = 0;
};
using Tuner = Result<TunedRecord> (*)(const TuneRequest& request);
void set_tuner(Tuner tuner);

}  // namespace flashjit
