// The parameters, besides Q, K and V, whose gradients bwd writes: grads="slope, sink".
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// validate() calls it when the parameters are known. It sorts the names by the order of the parameters, with the sink
// last.
Result<void> check_gradients(AttentionSpec& spec);

// Refuses fields that fwd has and bwd has not, and fields that are for bwd alone.
Result<void> check_backward(const AttentionSpec& spec);

}  // namespace flashjit
