// Gradients of scores, derived from their expressions. SPEC.md, "Derivatives", tells which subgradients are taken where
// a function bends, and where a derivative counts as 0 instead of 0 times infinity.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "compiler/language/expr.h"

namespace flashjit {

// One read of a parameter whose gradient is wanted, in a score: a Scalar, or a Load with its index expressions.
struct ReadGradient {
  Expr read;
  // The derivative of the score by the element that is read, in the variables of the score, s included.
  Expr derivative;
};

// The results of one simplification. Common subexpressions are the same nodes, so an evaluation of several results
// computes a tanh once.
struct ScoreGradients {
  Expr score;  // The simplified score; `s` if there is none.
  Expr by_s;   // d score / d s, where s is the score that the function is given.
  // They are in the order of `wanted`, then of first use. None is 0 everywhere.
  std::vector<ReadGradient> by_params;
};
inline constexpr std::size_t kMaxReadGradients = 16;

// `score` and `mask` are those of one spec, and either may be empty. `wanted` has names of parameters. Names without a
// gradient, and derivatives beyond the limits of the language, are refused.
Result<ScoreGradients> gradients_of(const Expr& score, const Expr& mask, std::span<const std::string> wanted);

}  // namespace flashjit
