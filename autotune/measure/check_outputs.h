// Two kernels that compute the same results do not agree to the bit, because they round differently.
#pragma once

#include <string>
#include <vector>

#include "autotune/measure/problem.h"

namespace flashjit {

// Returns a copy of the outputs.
std::vector<NamedTensor> outputs_of(ProblemData& data);

// Returns an empty text if the outputs are alike up to rounding, or else what differs, and where. NaN must be where the
// expected ones are. An element that a kernel did not write shows, because outputs are poisoned with NaN before.
// `unit_of_weights` is that of the kernel that rounds its weights more coarsely; see unit_of_weights().
std::string compare_outputs(const std::vector<NamedTensor>& expected, ProblemData& got, double unit_of_weights = 0);

// Returns how far rounding moves a probability if products are of 8 bits. Otherwise it is 0, because outputs are
// rounded as coarsely.
double unit_of_weights(const Facts& facts);

}  // namespace flashjit
