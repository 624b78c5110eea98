// Rounding to 8 bits is computed by its definition (compiler/SPEC.md, "Quantising"), in float64: the rotation as a
// product with the whole matrix, numbers of 8 bits from a list of them all.
//
// The rule for `quantize`: without a rotation y and scale are exactly what fp32 makes of the definition. A rotation may
// differ by its order, by 2^-20 of the sum of a row's sizes over sqrt(d). The scale may be off by that much, and y is
// the rounded quotient of x and the scale that was written, for some x as near to the exact one. So codes are exact
// except where two are equally near, up to that error. Before both, `rope` may round to the other of two equally near
// elements of 16 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "autotune/reference/compare.h"
#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit::reference {

// Returns the matrix that rows are multiplied with, [d, d].
std::vector<double> rotation_matrix(int d);

// Returns the nearest number of the type. From the middle between two it takes the one with an even code, and beyond
// all of them the largest.
double round_narrow(Dtype dtype, double x);

// These rows of 16 or 32 bits share a scale.
struct GivenRows {
  std::vector<double> elements;   // d columns each, one row after the other
  std::vector<double> uncertain;  // how far each may be from these; mostly 0
};
// Adds a row of the call, turned if the spec says so, and rounded to its dtype. fp32 may round it to either of two
// numbers.
void add_row(GivenRows& rows, const AttentionSpec& spec, const Arguments& arguments, const std::vector<double>& row,
             std::int64_t position);

// These rows have one scale.
struct QuantizedRows {
  std::vector<double> exact;      // rotated, not rounded
  std::vector<double> uncertain;  // how far fp32 may be from the exact number
  std::vector<double> y;          // numbers of 8 bits
  // Distance to other numbers of 8 bits to which fp32 may round. It is mostly 0.
  std::vector<double> doubts;
  double largest = 0;  // the largest number that is finite
  float scale = 1;
};
QuantizedRows quantize_rows(const GivenRows& rows, int d, bool rotate, Dtype dtype);

// Does for a quantize what compare() does for attention.
Comparison compare_quantized(const Problem& problem, const CompareOptions& options);
// Compares rows of latents that a call has written. They must be exactly what their definition makes
// (caches/latents.h).
Comparison compare_latents(const Problem& problem);

}  // namespace flashjit::reference
