// head_tables in a spec: the block table has a line for each KV head of a sequence, where it has one for each sequence without.
// Lengths are those of the sequence, so positions, and masks of them, are those of all its heads.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

// The part of validate() that is about it.
Result<void> check_head_tables(const AttentionSpec& spec);

}  // namespace flashjit
