// The steps of softmax for a row, which all loops share: scales, references, the sink, results that are written of a row.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"

namespace flashjit {

// exp2((s - reference) * kLog2Scale) is what becomes of a score: without a score function, and without scales that are
// known at run time, the scale of the scores is folded into the exponent.
constexpr bool kScaleFolded = folds_scale(config);
constexpr float kLog2Scale = kScaleFolded ? config.scale * kLog2e : kLog2e;
constexpr float kNaturalScale = kScaleFolded ? config.scale : 1.0f;  // from a score to its natural unit
// Scores beyond this have a product with kLog2Scale whose rounding error alone, 2^-24 of it, is no longer small in an
// exponent.
constexpr float kLargeScore = 0x1p20f / kLog2Scale;

constexpr float kNaturalLse = config.lse == Lse::log2 ? kLn2 : 1.0f;  // of what the spec calls lse

// ---- over the four lanes of a quad, which share the rows of a fragment ----

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// ---- at the end of a row; references are in natural units: in powers of two the largest floats, which some use as a
// mask, would be infinite ----

// The sink is one more score, which has no value: the reference and the sum take it in. Returns the factor that O must be
// multiplied by because of the new reference.
__device__ inline float take_in_sink(float& reference, float& sum, float sink) {
  const float raised = fmaxf(reference, sink);
  const float scale = reference == -kInfinity ? 0.0f : exp2_approx((reference - raised) * kLog2e);
  sum = sum * scale + (raised == -kInfinity ? 0.0f : exp2_approx((sink - raised) * kLog2e));
  reference = raised;
  return scale;
}

// Nothing visible leaves a sum of zero.
__device__ inline void store_lse(const KernelParams& params, Int64 row, float reference, float sum) {
  const float in_log2 = log2_approx(sum);
  const float lse = config.lse == Lse::log2 ? reference * kLog2e + in_log2 : reference + in_log2 * kLn2;
  params.lse[row] = sum == 0.0f ? -kInfinity : lse;
}

// `top`: the row's largest score. fmaxf drops NaN; the sum does not.
__device__ inline void store_max_logit(const KernelParams& params, Int64 row, float top, float sum) {
  params.max_logit[row] = sum != sum ? sum : kScaleFolded ? top * config.scale : top;
}

}  // namespace flashjit
