// The rules for a spec with `accumulate`, whose calls go on from what others gave: O and LSE of other keys, or gradients.
#pragma once

#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Does the rest of the spec go with it?
Result<void> check_accumulate(const AttentionSpec& spec);

}  // namespace flashjit
