// The base of engines for every device. It finds prepared kernels again, by the words of the request or by their
// meaning; it lets one of several callers who want a kernel make it; and it has tuning records decide where nothing is
// pinned.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "runtime/compile/compile_bounds.h"
#include "runtime/compile/request.h"
#include "runtime/engine/background.h"
#include "runtime/engine/counters.h"
#include "runtime/engine/environment.h"
#include "runtime/engine/kernel_table.h"
#include "runtime/engine/prepare_log.h"
#include "runtime/launch/kernels.h"
#include "runtime/store/single_flight.h"
#include "runtime/tuned/choice.h"

namespace flashjit {

// This structure describes the kernel that a prepare is to make.
struct Wanted {
  std::string written;  // The spec as the caller wrote it, for the log.
  Request request;      // The request has the caller's pins, or a choice that was made for the caller.
  Schedule asked;       // The pins of the caller.
  std::string note;     // A note about the choice, for Facts::notes; it may be empty.
  bool verify;          // PrepareOptions::verify

  // Callers that are to get the same kernel have the same identity, whatever words they use.
  std::string identity() const;
};

class EngineBase : public Engine {
 public:
  EngineBase(const Target& target, PrepareLog log);
  std::string target() const override { return std::string(target_.name); }

  // Has tuning records decide where nothing is pinned. This is called before the engine is handed out.
  void use_records(Machine machine, std::string store_path, const EngineOptions& options,
                   const EnvironmentSettings& settings) {
    tuned_.emplace(std::move(machine), std::move(store_path), options, settings);
  }

  Result<std::shared_ptr<Kernel>> prepare(std::string_view spec, const PrepareOptions& options) override;
  Counters counters() const override;

 protected:
  virtual Result<std::shared_ptr<Kernel>> make(const Wanted& wanted, const PrepareOptions& options,
                                               const CompileBounds& bounds) = 0;
  virtual Counters made() const = 0;  // Counts what `make` did.
  virtual Result<void> check_capture(void*) const { return {}; }
  void record(Facts& facts, const Wanted& wanted) const;
  // Makes the kernels of a spec that several kernels compute. They are found, compiled and recorded as others are.
  using MakeKernel = std::function<Result<std::shared_ptr<RunnableKernel>>(const Wanted& one)>;
  static Result<std::vector<std::shared_ptr<RunnableKernel>>> make_each(const Wanted& whole, const MakeKernel& make);

  const Target target_;  // It has the device's number of SMs.
  const PrepareLog log_;
  // These threads work for prepares that have a time limit or can be called off. `make` runs there, so a derived class
  // has to end them first.
  Background makers_;

 private:
  Result<std::shared_ptr<Kernel>> make_once(std::string_view spec, const PrepareOptions& options,
                                            const Result<void>& may_make);
  SingleFlight<Kernel>::Outcome find_or_make(const Wanted& wanted, const PrepareOptions& options,
                                             const CompileBounds& bounds);
  Result<Wanted> decide(std::string_view spec, const PrepareOptions& options, bool may_tune,
                        const CompileBounds& bounds);
  Result<std::shared_ptr<Kernel>> make_chosen(Wanted wanted, const PrepareOptions& options,
                                              const CompileBounds& bounds);

  std::optional<TunedSchedules> tuned_;     // If empty, no record decides.
  struct Measured {};                       // Others who wait for a measurement need no more than this.
  SingleFlight<const Measured> measuring_;  // Flights are named by spec and sizes.
  SingleFlight<Kernel> making_;             // Flights are named by Wanted::identity.
  KernelTable prepared_;
  StripedCounter memory_hits_;
  std::atomic<std::int64_t> waits_ = 0;
};

}  // namespace flashjit
