// The rules for elements of 8 bits in Q, K and V: which scales and which rounding a spec may have, and what has
// kernels.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// validate() calls the first three, and check_supported() the last one where Q has 8 bits.
Result<void> check_scales(const AttentionSpec& spec);
Result<void> check_transposed(const AttentionSpec& spec);
Result<void> check_narrowing(const AttentionSpec& spec);  // It checks `linear_exp`, `rotate` and `compute`.
Result<void> check_narrow_supported(const AttentionSpec& spec);

}  // namespace flashjit
