// The rules for a spec with `accumulate`, whose calls go on from results of others: O and LSE of other keys, or
// gradients.
#pragma once

#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Refuses specs whose other fields exclude `accumulate`.
Result<void> check_accumulate(const AttentionSpec& spec);

}  // namespace flashjit
