// Gradients of scores, derived from their expressions. Which subgradients are taken where a function bends, and where
// one counts as 0 instead of 0 times infinity, is in SPEC.md, "Derivatives".
#pragma once

#include <span>
#include <string>
#include <vector>

#include "compiler/language/expr.h"

namespace flashjit {

// One read of a parameter whose gradient is wanted, in a score: a Scalar, or a Load with its index expressions.
struct ReadGradient {
  Expr read;
  Expr derivative;  // of the score, by the element that is read; of the variables of the score, s included
};

// The results of one simplification: their common subexpressions are the same nodes, so whoever evaluates several of them
// takes a tanh once.
struct ScoreGradients {
  Expr score;                           // simplified; `s` where there is none
  Expr by_s;                            // d score / d s, s being the score that it is given
  std::vector<ReadGradient> by_params;  // in the order of `wanted`, then of first use; none that is 0 everywhere
};
inline constexpr std::size_t kMaxReadGradients = 16;

// `score` and `mask` of one spec, either may be empty; `wanted` are names of parameters. Refused: names of which there
// is no gradient, and derivatives beyond the limits of the language.
Result<ScoreGradients> gradients_of(const Expr& score, const Expr& mask, std::span<const std::string> wanted);

}  // namespace flashjit
