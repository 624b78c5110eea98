// Lists of blocks (blocks= in a spec) are applied by their definition.
#pragma once

#include "autotune/reference/semantics.h"

namespace flashjit::reference {

// `semantics` tells what is seen in listed blocks, and afterwards what is seen at all. `arguments` are looked at now,
// and missing lists are refused.
Result<void> look_at_lists(const AttentionSpec& spec, const Arguments& arguments, Semantics& semantics);

}  // namespace flashjit::reference
