// Lists of blocks (blocks= in a spec) by their definition.
#pragma once

#include "autotune/reference/semantics.h"

namespace flashjit::reference {

// `semantics` says what is seen in listed blocks, and then what is seen at all. `arguments` are looked at now; lists that are
// missing are refused.
Result<void> look_at_lists(const AttentionSpec& spec, const Arguments& arguments, Semantics& semantics);

}  // namespace flashjit::reference
