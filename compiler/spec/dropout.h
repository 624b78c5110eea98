// What a spec with dropout may be.
#pragma once

#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Is it a probability that leaves and drops some of the weights?
Result<void> check_dropout(const AttentionSpec& spec);
// Of a spec that has some: do kernels drop its weights?
Result<void> check_dropout_supported(const AttentionSpec& spec);

}  // namespace flashjit
