// Cases with V^T.
#pragma once

#include "tests/random/case.h"

namespace flashjit::testing_random {

inline constexpr std::string_view kTransposed = " v_transposed";

// Now and then the case of a forward whose products have 8 bits, with v as V^T; a stream of its own, so what a seed draws
// otherwise stays.
Case draw_transposed(Case c);
// The case of a spec, for the one that says `v_transposed` as well.
Case with_transposed_values(Case c);

}  // namespace flashjit::testing_random
