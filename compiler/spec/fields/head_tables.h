// head_tables in a spec: the block table has a line for each KV head of a sequence. Without it, there is one for each
// sequence. Lengths are those of the sequence, so positions, and masks of them, are the same for all its heads.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// validate() calls it.
Result<void> check_head_tables(const AttentionSpec& spec);

}  // namespace flashjit
