// Forward and backward share this arithmetic: logits, and sums in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "autotune/reference/semantics.h"
#include "compiler/spec/spec.h"

namespace flashjit::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Logit {
  std::int64_t k;
  double value;
  double error;      // standard deviation of what fp32 arithmetic makes of it
  double doubt = 0;  // how far elements in doubt may move it
};

float sum_in_pairs(const float* terms, std::size_t count);

// Sums of products are kept in fp32. For products of 8 bits Hopper's tensor cores align 32 terms and the sum so far,
// and cut them off, towards 0, 13 bits below the largest.
constexpr double unit_of_sums(Dtype weights) { return size_of(weights) == 1 ? 0x1p-13 : 0x1p-24; }

// So much of a sum over a tile of keys is lost by that, most of it always on the same side: 0.0003 to 0.0005, whatever is
// summed up. From one tile to the next kernels add in fp32. (Over 1000, 4111 and 16384 keys it would be 0.01, 0.05 and
// 0.17 for V with a mean as large as its deviation. Sums of such a unit, computed; an H200 has 0.01, 0.05 and 0.19.)
constexpr double kLostOfTile = 0x1p-12;

// `scales`: of the elements of Q and K. `unit`: of the sum. `doubt`: how far the sum may be off beside that.
Logit logit_of(const AttentionSpec& spec, const Semantics& semantics, const Position& at, const double* query,
               const float* key, double scales, double unit, double doubt = 0);

// Returns the deviation of a weight whose logarithm is off by `error`, a standard deviation: a quarter of what four of them
// add, and at most 1/2, as for any number from 0 to 1. Products of 8 bits make logits and errors so large that a weight of
// e^-90 may become 1: its logarithm and the error meet in one exponent, because one of them alone may be beyond the range.
double deviation_of_weight(double logarithm, double error);

}  // namespace flashjit::reference
