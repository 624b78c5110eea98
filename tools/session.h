// Where `run` and `bench` run things: a GPU or the host, opened once, and specs made ready on it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "autotune/measure.h"
#include "compiler/result.h"
#include "flashjit/flashjit.hpp"
#include "runtime/device_memory.h"
#include "tools/problem.h"

namespace flashjit {

class Session {
 public:
  // `where`: gpu, host, auto (a GPU if there is one, else the host), or a row of the target table.
  // `options`: all but device and target.
  static Result<std::unique_ptr<Session>> open(const std::string& where, EngineOptions options);

  bool on_gpu() const { return gpu_.has_value(); }
  std::string target() const { return engine_->target(); }
  Engine& engine() { return *engine_; }
  const GpuContext& gpu() const { return *gpu_; }
  const Stream& stream() const { return *stream_; }
  int ordinal() const { return ordinal_; }  // of the GPU
  Result<std::vector<Timing>> measure(const std::vector<Launch>& subjects, const MeasureOptions& options,
                                      const RoundDone& round_done) const;

 private:
  std::shared_ptr<Engine> engine_;
  std::optional<GpuContext> gpu_;
  std::optional<Stream> stream_;
  std::size_t l2_bytes_ = 0;
  int ordinal_ = 0;
};

// A kernel with its arguments on the session's device. The data must outlive it.
class Prepared {
 public:
  virtual ~Prepared() = default;
  static Result<std::unique_ptr<Prepared>> create(Session& session, const std::string& spec, const std::string& schedule,
                                                  ProblemData& data);
  // The textbook version: S and P go through memory between three steps.
  static Result<std::unique_ptr<Prepared>> create_naive(Session& session, const std::string& spec, const std::string& schedule,
                                                        ProblemData& data);
  // What PrepareOptions::budget answers with at first. GPU only.
  static Result<std::unique_ptr<Prepared>> create_quick(Session& session, const std::string& spec, const std::string& schedule,
                                                        ProblemData& data);

  const Facts& facts() const { return facts_; }
  std::uint64_t scratch_bytes() const { return scratch_bytes_; }  // memory beyond inputs and outputs
  virtual Result<void> start() = 0;     // asynchronous on a GPU
  Result<void> run_checked_outputs();   // poisons the outputs, runs once, waits, and brings the outputs to the host

 protected:
  Prepared(Session& session, ProblemData& data) : session_(session), data_(data) {}
  Result<void> place_data();
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
