// The parameters, besides Q, K and V, whose gradients a bwd writes: grads="slope, sink".
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// For validate(), when the parameters are known. Names are then in the order of the parameters, the sink last.
Result<void> check_gradients(AttentionSpec& spec);

// Refuses fields that bwd does not have, although fwd does, and those that are for bwd alone.
Result<void> check_backward(const AttentionSpec& spec);

}  // namespace flashjit
