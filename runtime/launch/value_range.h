// What a tensor of ints holds.
#pragma once

#include <cstdint>
#include <span>

#include "compiler/analysis/interval.h"
#include "compiler/spec/dtype.h"
#include "runtime/launch/call.h"

namespace flashjit {

// The smallest and the largest of its elements in a box: dimension by dimension, those of an interval, as far as the
// tensor has them. 0 where it has none. Of a tensor that can be read here.
IntInterval range_of_values(const TensorView& tensor, Dtype dtype, std::span<const IntInterval> box);

}  // namespace flashjit
