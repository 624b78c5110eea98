// How a spec with `compute=` is computed: kernels of their own round Q, K and V to 8 bits, Q and K rotated if it says so,
// and one attends to what they leave in the workspace, as it does to tensors of 8 bits that a caller brings.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

struct Narrowing {
  AttentionSpec q, k, v, attention;
};

Result<Narrowing> narrowing_of(const AttentionSpec& spec);

}  // namespace flashjit
