// The weights that dropout keeps, for callers who want to see them: both APIs call this.
#pragma once

#include "compiler/result.h"
#include "runtime/launch/call.h"

namespace flashjit {

// `kept`: u8 [batch, heads, q_len, k_len] on the host, any strides.
Result<void> write_dropout_mask(double dropout, std::int64_t seed, std::int64_t offset, const TensorView& kept);

}  // namespace flashjit
