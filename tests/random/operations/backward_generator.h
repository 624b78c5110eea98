// Cases of gradients: a forward problem, O and LSE that the reference gives for it, and drawn gradients of both.
#pragma once

#include "compiler/spec/spec.h"
#include "tests/random/case.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

// Gives a case that has all tensors what a backward call reads besides: O and LSE by the reference, and drawn gradients of
// these.
void set_results_of_forward(Case& c, const AttentionSpec& spec, Random& random);

// Now and then, where the drawn spec can be a bwd.
Case draw_backward(Case c);
// For a row of a table, whose spec is a bwd or not.
Case take_backward(Case c);

}  // namespace flashjit::testing_random
