// Sequences of a drawn case that begin with the same pages, and the field of the spec that says so.
#pragma once

#include "tests/random/case.h"

namespace flashjit::testing_random {

// Now and then, where the drawn spec can have the field.
Case draw_shared_prefix(Case c);
// For a row of a table, whose spec has the field or not: all whole pages of sequence 0, but for a key.
Case take_shared_prefix(Case c);

}  // namespace flashjit::testing_random
