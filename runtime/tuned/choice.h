// If nothing is pinned, `prepare` takes the schedule of a tuning record, or the one that the cost model chooses for the
// hinted shape. A prepare may also ask for a tuning.
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
  // If there is none, nothing is known, and the cost model ranks at its assumed shape.
  std::optional<Schedule> schedule;
  std::string note;  // goes into Facts::notes; empty if there is nothing to note
};

// An engine reads and makes tuning records through this class.
class TunedSchedules {
 public:
  // `store_path` names where records are kept, besides those that came with the library. It may be empty.
  TunedSchedules(Machine machine, std::string store_path, const EngineOptions& options,
                 const EnvironmentSettings& settings)
      : machine_(std::move(machine)), store_path_(std::move(store_path)), options_(options), settings_(settings) {}

  // Chooses the schedule of a request that pins nothing. `workspace` means that the caller brings one
  // (PrepareOptions::workspace).
  TunedChoice choose(const Request& request, const std::optional<Shape>& hint, bool workspace);
  // Makes a record by PrepareOptions::tune, unless there is one for this class of shapes.
  Result<void> tune(const Request& request, const PrepareOptions& options);

 private:
  // Returns the records of one spec.
  std::vector<TunedRecord> records(std::string_view spec);

  const Machine machine_;
  const std::string store_path_;
  const EngineOptions options_;  // the options that the engine was created with
  const EnvironmentSettings settings_;
  ForkSafeMutex mutex_;
  // This text holds all records. It is absent until they have been read.
  std::optional<std::string> lines_;
};

// A folder that builds on this one does the measuring. Where it is linked in, it registers its function here.
struct TuneOrder {
  const Request& request;
  Shape shape;
  const EngineOptions& engine;  // the options that the engine was created with
  const EnvironmentSettings& settings;
  double seconds = 0;
};
// The tuner returns nothing if the times decide nothing.
using Tuner = Result<std::optional<TunedRecord>> (*)(const TuneOrder& order);
void set_tuner(Tuner tuner);

}  // namespace flashjit
