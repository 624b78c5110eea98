#include "autotune/reference/arithmetic.h"

#include <algorithm>
#include <cmath>

#include "compiler/spec/half.h"

namespace flashjit::reference {

// The order of an fp32 sum decides its error. A plain loop over thousands of terms would make the recipe look worse
// than any real implementation, so partial sums of 16 terms are added up in pairs.
float sum_in_pairs(const float* terms, std::size_t count) {
  if (count <= 16) {
    float sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += terms[i];
    return sum;
  }
  const std::size_t half = count / 2;
  return sum_in_pairs(terms, half) + sum_in_pairs(terms + half, count - half);
}

Logit logit_of(const AttentionSpec& spec, const Semantics& semantics, const Position& at, const double* query,
               const float* key, double scales, double unit, double doubt) {
  const int d = spec.d_qk;
  const double scale = spec.effective_scale() * scales;
  double dot = 0, squares = 0;
  for (int i = 0; i < d; ++i) {
    const double product = query[i] * key[i];
    dot += product;
    squares += product * product;
  }
  // A dot product makes about one rounding of a partial sum per term, and partial sums wander like the terms.
  double error = unit * (std::fabs(dot) + 0.5 * std::sqrt(squares * d)) * std::fabs(scale);
  error += doubt * std::fabs(scale);
  // A rotated query is rounded to its dtype again, each element by itself. Latents with their scales may be, too.
  const bool rounds_latents = spec.v_in_k && has_scaled_keys(spec) && size_of(spec.dtype) == 2;
  if (spec.rope != Rope::none || rounds_latents)
    error += unit_roundoff(spec.dtype) * std::sqrt(squares / 3) * std::fabs(scale);
  Dual s(dot * scale);
  if (semantics.score) {
    const Dual scored = semantics.score(at, s);
    const auto moved_by = [&](double step) {
      return std::fabs(semantics.score(at, Dual(s.f, s.d + step)).d - scored.d);
    };
    double moved = moved_by(error);
    // Some roundings are no small steps, and scores may bend within them.
    if (unit > unit_of_sums(Dtype::F32)) moved = std::max(moved, moved_by(-error));
    if (spec.rope != Rope::none) moved = std::max({moved, moved_by(-3 * error), moved_by(3 * error)});
    error = moved + std::fabs(scored.f - scored.d) + 0x1p-23 * std::fabs(scored.d);
    s = scored;
  }
  return {at.k, s.d, error};
}

double deviation_of_weight(double logarithm, double error) {
  return std::min(0.5, -std::exp(logarithm + 4 * error) * std::expm1(-4 * error) / 4);
}

}  // namespace flashjit::reference
