// The fields that operations other than attention have of a spec: of keys a merge and a quantize know nothing, and of V and
// of the softmax none of them does.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// The parts of validate() that are about these.
Result<void> check_merge(const AttentionSpec& spec);
Result<void> check_quantize(const AttentionSpec& spec);
Result<void> check_index(const AttentionSpec& spec);

}  // namespace flashjit
