// O and LSE of calls of bwd, which forward wrote: what fits the Q, K and V that were drawn.
#pragma once

#include "autotune/measure/problem.h"

namespace flashjit {

// Overwrites those that are not from files.
void set_results_of_forward(ProblemData& data, const AttentionSpec& spec, const ProblemShape& shape,
                            const InputFiles& inputs);

}  // namespace flashjit
