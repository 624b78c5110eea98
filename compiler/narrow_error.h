// The cost of 8 bits: the measured distance of O from attention in float64, relative to the size of O. It is given for
// normal numbers, and for outliers, where 10 times a normal number is added to one of 1000 elements.
#pragma once

#include <string_view>

#include "compiler/spec/spec.h"

namespace flashjit {

struct NarrowError {
  double normal = 0, outliers = 0;
};

// Returns the error that `quantize` makes by rounding Q, K and V, with exact weights, against attention to the tensors
// before. `rotated`: Q and K were rotated before they were rounded.
NarrowError rounding_error(const AttentionSpec& spec, bool rotated);
inline constexpr std::string_view kRoundingMeasured = "d=128, 4096 keys, on a processor";

// Returns the error of a kernel that multiplies such weights, against attention to the same Q, K and V of 8 bits.
// `interpolated`: the weights are interpolated (linear_exp).
NarrowError weights_error(Dtype weights, bool interpolated);
inline constexpr std::string_view kWeightsMeasured = "d=128, 4096 keys, interpolated ones 8000, on a GPU";

}  // namespace flashjit
