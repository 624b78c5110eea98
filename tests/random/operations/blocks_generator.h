// Lists of blocks for some of the drawn cases.
#pragma once

#include "tests/random/case.h"

namespace flashjit::testing_random {

// The case with `blocks=` and lists, or as it is.
Case draw_blocks(Case c);
// A case whose spec has `blocks=` already, with lists.
Case take_blocks(Case c);

}  // namespace flashjit::testing_random
