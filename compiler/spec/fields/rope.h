// The rules for columns that turn by position.
#pragma once

#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Refuses columns that are not there, and a spec without rows that turn.
Result<void> check_rope(const AttentionSpec& spec);

}  // namespace flashjit
