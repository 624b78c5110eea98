// The rules for columns that turn by position.
#pragma once

#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Are there such columns, and is something there that turns?
Result<void> check_rope(const AttentionSpec& spec);

}  // namespace flashjit
