// The error rule holds what a kernel wrote against the float64 reference.
//
// For O, the largest absolute error and the relative Frobenius error each stay within 2x of the recipe's own. If rows
// are few the recipe may be right by luck, so the limits are at least what the sizes of the recipe's roundings predict:
// four standard deviations of one element, and, for the norm, 2 (1 + 1/sqrt(rows)) times its expected value. For LSE
// and max logit, |error| <= 8 e + 2^-20 (1 + |value|), where e is the fp32 error of one logit. exp, log and their
// argument reduction each lose at most a few units of 2^-23; the rest is room for the order of the sum.
//
// With compute=, all this holds for attention to Q, K and V rounded by definition. The distance to attention to Q, K
// and V as they are is reported, and not judged, because the rounding was asked for. This is also true of Q, K and V of
// 8 bits whose numbers before rounding are known.
//
// Each of dQ, dK and dV is judged as O is, and each row of them by itself: its error stays within 2x of the recipe's,
// or five standard deviations, whichever is larger. Otherwise a wrong row of small gradients would be lost among
// others. Gradients of parameters and sinks are judged in the same way. In small tensors each element is a row, and a
// gradient is 0 if no score reads its element.
#pragma once

#include <cstdint>
#include <string>

#include "autotune/reference/reference.h"

namespace flashjit::reference {

struct CompareOptions {
  double work = 4e8;       // multiply-adds to spend; rows are sampled if all of them would cost more
  std::uint64_t seed = 1;  // seed of the sample
  int threads = 1;
};

struct Comparison {
  bool ok = false;
  std::int64_t rows = 0, rows_checked = 0;
  double max_abs_err = 0, max_abs_limit = 0, recipe_max_abs_err = 0;
  double rel_err = 0, rel_limit = 0, recipe_rel_err = 0;
  double lse_err = 0;  // largest error over its limit; above 1 is a failure
  double max_logit_err = 0;
  double unrounded_rel_err = 0, unrounded_rms = 0;  // distances from the result of Q, K and V that are not rounded
  double row_err = 0;                               // for gradients, the largest error of a row over its limit
  std::string problem;                              // tells what is wrong and at which element; empty if all is right
  std::string unchecked;                            // tensors that would take too long
};

Comparison compare(const Problem& problem, const CompareOptions& options = {});
// `unrounded` has the numbers of a problem of 8 bits before rounding, and what the kernel wrote for it.
void add_unrounded_errors(const Problem& unrounded, const CompareOptions& options, Comparison& result);
// Does for bwd what compare() does for attention.
Comparison compare_gradients(const Problem& problem, const CompareOptions& options);

// A tally holds what was found about one tensor of gradients.
struct Gradient;
struct GradientTally {
  double worst = 0, recipe_worst = 0, deviation = 0;
  double squares = 0, recipe_squares = 0, expected_squares = 0, norm = 0;
  double rows = 0, row = 0;  // `row` is the largest error of a row over its limit.
  std::string worst_element, worst_row, special;

  void add(const GradientTally& tally);
  void check_row(const std::vector<double>& ours, const Gradient& row, const std::string& row_name);
};
void judge(const std::string& name, const GradientTally& all, Comparison& result);
// Compares all gradients of parameters and sinks of a bwd.
void compare_parameter_gradients(const Problem& problem, const CompareOptions& options, Comparison& result);

}  // namespace flashjit::reference
