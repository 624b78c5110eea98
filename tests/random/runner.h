// Runs a case through the public engine, on the host or on a GPU, and says everything that is wrong with what came
// back.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/driver.h"
#include "tests/device/fenced_memory.h"
#include "tests/random/case.h"
#include "autotune/reference/compare.h"

namespace flashjit::testing_random {

struct Outcome {
  bool ok = false;
  std::string problem;   // empty when ok
  std::string schedule;  // what ran
  std::string refused;   // pins whose kernel the engine would not run; another one ran
  reference::Comparison comparison;
};

class Runner {
 public:
  struct Options {
    Device device = Device::Host;
    std::string target, schedule;  // empty: what the device is, and what the cost model chooses
    double work = 1.5e7;           // multiply-adds of the reference per case
    int threads = 0;               // of host kernels
    bool alone = false;  // with numerics=batch_invariant, and each sequence again in a call of its own: the same bits
  };
  static Result<std::unique_ptr<Runner>> create(const Options& options);

  // May be called from several threads at once.
  Outcome run(Case& c) const;

  std::string target() const { return engine_->target(); }

 private:
  Result<std::shared_ptr<Kernel>> prepare(const Case& c, Outcome& outcome) const;
  using Images = std::map<const CaseTensor*, std::vector<std::uint8_t>>;
  // `before`: what tensors held that calls read and write.
  std::string check_second_run(Case& c, const AttentionSpec& spec, Kernel& kernel, const Images& before) const;
  // Places the images, runs one call after the other, and brings the outputs back.
  using Calls = std::vector<Arguments> (*)(const AttentionSpec& spec, const Arguments& whole);
  Result<void> launch(Case& c, const AttentionSpec& spec, Kernel& kernel, Calls calls) const;
  Result<void> launch_on_host(Case& c, const AttentionSpec& spec, Kernel& kernel, Calls calls) const;
  Result<void> launch_on_gpu(Case& c, const AttentionSpec& spec, Kernel& kernel, Calls calls) const;

  Options options_;
  std::shared_ptr<Engine> engine_;
  GpuContext gpu_;
  mutable FencedPool memory_;
};

}  // namespace flashjit::testing_random
