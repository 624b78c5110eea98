// The peak is the roof over a kernel: how much the device could compute and read at most.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace flashjit {

struct Peak {
  double tflops = 0, tbs = 0;  // 0 if not known
  std::string how;             // tells where the figures come from
};

// Returns the peak of the instruction that multiplies in the plan's kernel. For GPUs it comes from the target table,
// for `units` SMs. For processors it is measured here, on `units` threads at a time, which takes up to a second,
// because clocks and pipes differ within a target.
Peak peak_of(const Plan& plan, int units);

}  // namespace flashjit
