// Rounding to 8 bits by its definition (compiler/SPEC.md, "Quantising"), in float64: the rotation as a product with the
// whole matrix, numbers of 8 bits from a list of them all.
//
// The rule for `quantize`: without a rotation y and scale are exactly what fp32 makes of the definition. A rotation may
// differ by its order, by 2^-20 of the sum of a row's sizes over sqrt(d): so much may the scale be off, and y is what x
// over the scale that was written is rounded to, for some x as near to the exact one. So codes are exact but where two
// are as near, up to that. Before both, `rope` may round to the other of two elements of 16 bits that are as near.
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

// Rows that share a scale, of 16 bits, or of 32.
struct GivenRows {
  std::vector<double> elements;   // of d columns, one row after the other
  std::vector<double> uncertain;  // how far each may be from these; mostly 0
};
// A row of the call, turned if the spec says so, and rounded to its dtype: fp32 may round it to either of two.
void add_row(GivenRows& rows, const AttentionSpec& spec, const Arguments& arguments, const std::vector<double>& row,
             std::int64_t position);

// Rows with one scale.
struct QuantizedRows {
  std::vector<double> exact;      // rotated, not rounded
  std::vector<double> uncertain;  // how far fp32 may be from that
  std::vector<double> y;          // numbers of 8 bits
  std::vector<double> doubts;     // how far from these the next ones are that fp32 may round to; mostly 0
  double largest = 0;             // of the numbers that are finite
  float scale = 1;
};
QuantizedRows quantize_rows(const GivenRows& rows, int d, bool rotate, Dtype dtype);

// Does for a quantize what compare() does for attention.
Comparison compare_quantized(const Problem& problem, const CompareOptions& options);
// Compares rows of latents that a call has written: they must be exactly what their definition makes (caches/latents.h).
Comparison compare_latents(const Problem& problem);

}  // namespace flashjit::reference
