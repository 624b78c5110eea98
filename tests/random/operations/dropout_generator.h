// Cases with dropout.
#pragma once

#include "tests/random/case.h"

namespace flashjit::testing_random {

// Now and then the case of a forward with dropout; a stream of its own, so what a seed draws otherwise stays.
Case draw_dropout(Case c);
// For a row of a table: seed and offset, if its spec reads them.
Case take_dropout(Case c);

}  // namespace flashjit::testing_random
