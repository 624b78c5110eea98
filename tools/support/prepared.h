// A prepared kernel has its tensors on a session's device.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "autotune/measure/problem.h"
#include "autotune/search/session.h"
#include "compiler/result.h"
#include "flashjit/flashjit.hpp"
#include "runtime/compile/request.h"

namespace flashjit {

// This is a kernel with its arguments on the session's device. The data must outlive it.
class Prepared {
 public:
  virtual ~Prepared() = default;
  // `hint` is PrepareOptions::shape. It counts if no schedule is pinned.
  static Result<std::unique_ptr<Prepared>> create(Session& session, const std::string& spec,
                                                  const std::string& schedule, const std::string& hint,
                                                  ProblemData& data);
  // Creates the textbook version, in which S and P go through memory between three steps.
  static Result<std::unique_ptr<Prepared>> create_naive(Session& session, const Request& request, ProblemData& data);
  // Makes the quick kernel that PrepareOptions::budget answers with at first. GPU only.
  static Result<std::unique_ptr<Prepared>> create_quick(Session& session, const Request& request, ProblemData& data);

  const Facts& facts() const { return facts_; }
  std::uint64_t scratch_bytes() const { return scratch_bytes_; }  // memory beyond inputs and outputs
  virtual Result<void> start() = 0;                               // asynchronous on a GPU
  // Poisons the outputs, runs once, waits, and brings the outputs to the host.
  Result<void> run_checked_outputs();

 protected:
  Prepared(Session& session, ProblemData& data) : session_(session), data_(data) {}
  Result<void> bind_data(const Kernel& kernel);
  const Arguments& arguments() const { return device_ ? device_->arguments() : host_arguments_; }
  void* stream() const { return session_.on_gpu() ? session_.stream().get() : nullptr; }

  Session& session_;
  ProblemData& data_;
  Facts facts_;
  std::uint64_t scratch_bytes_ = 0;

 private:
  std::optional<DeviceProblem> device_;
  Arguments host_arguments_;
};

}  // namespace flashjit
