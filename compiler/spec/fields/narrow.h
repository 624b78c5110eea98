// Elements of 8 bits in Q, K and V: what a spec may say of their scales and of rounding to them, and what has kernels.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// The parts of validate() and, where Q has 8 bits, of check_supported() that are about these.
Result<void> check_scales(const AttentionSpec& spec);
Result<void> check_transposed(const AttentionSpec& spec);
Result<void> check_narrowing(const AttentionSpec& spec);  // `rotate` and `compute`
Result<void> check_narrow_supported(const AttentionSpec& spec);

}  // namespace flashjit
