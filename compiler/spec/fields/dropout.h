// The rules for a spec with dropout.
#pragma once

#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Refuses a dropout that is no probability, or that drops none or all of the weights.
Result<void> check_dropout(const AttentionSpec& spec);
// Refuses specs with dropout whose kernels drop no weights.
Result<void> check_dropout_supported(const AttentionSpec& spec);

}  // namespace flashjit
