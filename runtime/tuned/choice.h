// This file says which schedule `prepare` takes when none is pinned: that of a tuning record, or the cost model's for the
// shape that is hinted at; and the tuning that a prepare may ask for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "runtime/compile/request.h"
#include "runtime/engine/environment.h"
#include "runtime/engine/fork_safe_mutex.h"
#include "runtime/tuned/records.h"

namespace flashjit {

struct TunedChoice {
  std::optional<Schedule> schedule;  // none: nothing is known; the cost model ranks at its assumed shape
  std::string note;                  // for Facts::notes; empty: there is nothing to say
};

// This class is an engine's access to tuning records.
class TunedSchedules {
 public:
  // `store_path`: where records are kept, besides those that came with the library; may be empty.
  TunedSchedules(Machine machine, std::string store_path, const EngineOptions& options,
                 const EnvironmentSettings& settings)
      : machine_(std::move(machine)), store_path_(std::move(store_path)), options_(options), settings_(settings) {}

  // Chooses the schedule of a request that pins nothing. `workspace`: the caller brings one (PrepareOptions::workspace).
  TunedChoice choose(const Request& request, const std::optional<Shape>& hint, bool workspace);
  // As PrepareOptions::tune says: makes a record, unless there is one of this class.
  Result<void> tune(const Request& request, const PrepareOptions& options);

 private:
  // Returns the records of one spec.
  std::vector<TunedRecord> records(std::string_view spec);

  const Machine machine_;
  const std::string store_path_;
  const EngineOptions options_;  // what the engine was created with
  const EnvironmentSettings settings_;
  ForkSafeMutex mutex_;
  std::optional<std::string> lines_;  // of all records; none: not read yet
};

// Measuring is the business of a folder that builds on this one. Where that is linked in, it says here how.
struct TuneOrder {
  const Request& request;
  Shape shape;
  const EngineOptions& engine;  // what the engine was created with
  const EnvironmentSettings& settings;
  double seconds = 0;
};
using Tuner = Result<std::optional<TunedRecord>> (*)(const TuneOrder& order);  // none: the times decided nothing
void set_tuner(Tuner tuner);

}  // namespace flashjit
