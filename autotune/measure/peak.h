// The roof over a kernel: what the device could compute and read at most.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

struct Peak {
  double tflops = 0, tbs = 0;  // 0: not known
  std::string how;             // where the figures are from
};

// Returns the peak of the instruction that multiplies in the plan's kernel. GPUs: by the target table, for `units` SMs.
// Processors: it is measured here, on `units` threads at a time, which takes up to a second, because clocks and pipes
// differ within a target.
Peak peak_of(const Plan& plan, int units);

}  // namespace flashjit
