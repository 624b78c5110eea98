// Holds what a kernel wrote against the float64 reference, by the error rule.
//
// For O: the largest absolute error and the relative Frobenius error each stay within 2x of the recipe's own. Where
// rows are few the recipe may be right by luck, so the limits are at least what the sizes of the recipe's roundings
// predict: four standard deviations of one element, and, for the norm, 2 (1 + 1/sqrt(rows)) times its expected value.
// For LSE and max logit: |error| <= 8 e + 2^-20 (1 + |value|), e the fp32 error of one logit. exp, log and their
// argument reduction each lose at most a few units of 2^-23; the rest is room for the order of the sum.
//
// For dQ, dK and dV: each of them as O, and each row of them by itself: its error stays within 2x of the recipe's, or
// five standard deviations, whichever is larger. A row of small gradients that is wrong is lost among others otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "autotune/reference/reference.h"

namespace flashjit::reference {

struct CompareOptions {
  double work = 4e8;       // multiply-adds to spend; rows are sampled when all of them would cost more
  std::uint64_t seed = 1;  // of the sample
  int threads = 1;
};

struct Comparison {
  bool ok = false;
  std::int64_t rows = 0, rows_checked = 0;
  double max_abs_err = 0, max_abs_limit = 0, recipe_max_abs_err = 0;
  double rel_err = 0, rel_limit = 0, recipe_rel_err = 0;
  double lse_err = 0;  // largest error over its limit: above 1 is a failure
  double max_logit_err = 0;
  double row_err = 0;   // of gradients: the largest error of a row over its limit
  std::string problem;  // empty when ok: what is wrong and at which element
};

Comparison compare(const Problem& problem, const CompareOptions& options = {});
// Of bwd; what compare() does for it.
Comparison compare_gradients(const Problem& problem, const CompareOptions& options);

}  // namespace flashjit::reference
