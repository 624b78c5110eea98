// Do two kernels compute the same? Not to the bit: they round differently.
#pragma once

#include <string>
#include <vector>

#include "autotune/measure/problem.h"

namespace flashjit {

// A copy of the outputs.
std::vector<NamedTensor> outputs_of(ProblemData& data);

// Empty: alike up to rounding. Otherwise what differs, and where. NaN must be where the expected ones are; what a
// kernel left out shows, because outputs are poisoned with NaN before.
// `unit_of_weights`: the coarser of what the kernels multiply with V; see unit_of_weights().
std::string compare_outputs(const std::vector<NamedTensor>& expected, ProblemData& got, double unit_of_weights = 0);

// Says how far rounding moves a probability, where products are of 8 bits; else 0: outputs are rounded as coarsely.
double unit_of_weights(const Facts& facts);

}  // namespace flashjit
