// The fields of a spec that operations other than attention have. A merge and a quantize have no keys, and none of them
// has V or a softmax.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// validate() calls these.
Result<void> check_merge(const AttentionSpec& spec);
Result<void> check_quantize(const AttentionSpec& spec);
Result<void> check_index(const AttentionSpec& spec);

}  // namespace flashjit
