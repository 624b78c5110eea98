// What specs are like that round rows to elements of 8 bits: `quantize`, and `fwd` with compute=.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// The part of validate() that is about `rotate` and `compute`.
Result<void> check_narrowing(const AttentionSpec& spec);

}  // namespace flashjit
