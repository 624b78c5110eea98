// The rules for a spec with dropout.
#pragma once

#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Is it a probability that leaves and drops some of the weights?
Result<void> check_dropout(const AttentionSpec& spec);
// Do kernels drop weights of this spec, which has dropout?
Result<void> check_dropout_supported(const AttentionSpec& spec);

}  // namespace flashjit
