// What a score function reads at every key.
#pragma once

#include <vector>

#include "compiler/expr.h"

namespace flashjit {

// The loads param[..., k] of elements of 16 or 32 bits that the score evaluates for every query and key, of parameters that it
// reads nowhere else: a kernel may fetch a row of them ahead. None where it takes tanh, because then it is evaluated twice. Of the
// simplified score, in order of first use.
std::vector<Expr> score_inputs(const Expr& score);

// Does it read anything else that depends on the key?
bool reads_beside_inputs(const Expr& score);

}  // namespace flashjit
