// Rounding to 8 bits by its definition (compiler/SPEC.md, "Quantising"), in float64: the rotation as a product with the
// whole matrix, numbers of 8 bits from a list of them all.
//
// The rule for `quantize`: without a rotation y and scale are exactly what fp32 makes of the definition. A rotation may
// differ by its order, by 2^-20 of the sum of a row's sizes over sqrt(d): so much may the scale be off, and y is what x
// over the scale that was written is rounded to, for some x as near to the exact one. So codes are exact but where two
// are as near, up to that.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/reference/compare.h"
#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit::reference {

// The matrix that rows are multiplied with, [d, d].
std::vector<double> rotation_matrix(int d);

// The nearest number of the type, of two as near the one with an even code; the largest for all beyond.
double round_narrow(Dtype dtype, double x);

// Rows with one scale.
struct QuantizedRows {
  std::vector<double> exact;      // rotated, not rounded
  std::vector<double> uncertain;  // of each row: how far fp32 may be from that
  std::vector<double> y;          // numbers of 8 bits
  double largest = 0;             // of the numbers that are finite
  float scale = 1;
};
// `rows`: so many of d columns, one after the other.
QuantizedRows quantize_rows(const std::vector<double>& rows, int d, bool rotate, Dtype dtype);

// Of a quantize; what compare() does for it.
Comparison compare_quantized(const Problem& problem, const CompareOptions& options);

}  // namespace flashjit::reference
