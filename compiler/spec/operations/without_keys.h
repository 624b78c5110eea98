// The fields that operations other than attention have of a spec: all else is about keys, of which they know nothing.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// The parts of validate() that are about these.
Result<void> check_merge(const AttentionSpec& spec);
Result<void> check_quantize(const AttentionSpec& spec);

}  // namespace flashjit
