// Both APIs call this function for callers who want to see the weights that dropout keeps.
#pragma once

#include "compiler/result.h"
#include "runtime/launch/call.h"

namespace flashjit {

// `kept` is u8 [batch, heads, q_len, k_len] on the host, with any strides.
Result<void> write_dropout_mask(double dropout, std::int64_t seed, std::int64_t offset, const TensorView& kept);

}  // namespace flashjit
