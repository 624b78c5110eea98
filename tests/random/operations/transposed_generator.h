// Cases with V^T.
#pragma once

#include "tests/random/case.h"

namespace flashjit::testing_random {

// Now and then the case of a forward whose products have 8 bits, with v as V^T; a stream of its own, so what a seed draws
// otherwise stays.
Case draw_transposed(Case c);
// For a row of a table: V has been drawn as rows, and its spec may read V^T.
Case take_transposed(Case c);

}  // namespace flashjit::testing_random
