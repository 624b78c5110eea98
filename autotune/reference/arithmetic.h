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
  double error;      // standard deviation of the error of fp32 arithmetic
  double doubt = 0;  // distance that elements in doubt may move it
};

float sum_in_pairs(const float* terms, std::size_t count);

// Sums of products are kept in fp32. For products of 8 bits Hopper's tensor cores align 32 terms and the sum so far,
// and cut them off, towards 0, 13 bits below the largest.
constexpr double unit_of_sums(Dtype weights) { return size_of(weights) == 1 ? 0x1p-13 : 0x1p-24; }

// That cut loses this share of a sum over a tile of keys. Most of the loss is always on the same side: 0.0003 to
// 0.0005, whatever is summed up. From one tile to the next kernels add in fp32. (Over 1000, 4111 and 16384 keys without
// tiles it would be 0.01, 0.05 and 0.17 for V with a mean as large as its deviation. These are computed sums of such a
// unit; an H200 has 0.01, 0.05 and 0.19.)
constexpr double kLostOfTile = 0x1p-12;

// `scales` is the product of the scales of the elements of Q and K, `unit` that of the sum, and `doubt` how far the sum
// may be off besides.
Logit logit_of(const AttentionSpec& spec, const Semantics& semantics, const Position& at, const double* query,
               const float* key, double scales, double unit, double doubt = 0);

// Returns the deviation of a weight whose logarithm is off by `error`, a standard deviation. It is a quarter of what
// four such deviations add, and at most 1/2, which holds for any number from 0 to 1. Products of 8 bits make logits and
// errors so large that a weight of e^-90 may become 1. The logarithm and the error meet in one exponent, because one of
// them alone may be beyond the range.
double deviation_of_weight(double logarithm, double error);

}  // namespace flashjit::reference
