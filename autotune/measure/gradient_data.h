// Calls of bwd read the O and LSE that forward wrote. They have to fit the Q, K and V that were drawn.
#pragma once

#include "autotune/measure/problem.h"

namespace flashjit {

// Overwrites O and LSE if they do not come from files.
void set_results_of_forward(ProblemData& data, const AttentionSpec& spec, const ProblemShape& shape,
                            const InputFiles& inputs);

}  // namespace flashjit
