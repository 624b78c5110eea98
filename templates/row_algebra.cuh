// What softmax does to a row, whatever loop it is in: scales, references, the sink, what is written of a row.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"

namespace flashjit {

// exp2((s - reference) * kLog2Scale) is what becomes of a score: without a score function the scale of the scores is
// folded into the exponent.
constexpr bool kScaleFolded = !config.has_score && config.scale > 0;
constexpr float kLog2Scale = kScaleFolded ? config.scale * kLog2e : kLog2e;
// Scores beyond this have a product with kLog2Scale whose rounding error alone, 2^-24 of it, is no longer small in an
// exponent.
constexpr float kLargeScore = 0x1p20f / kLog2Scale;

// ---- over the four lanes of a quad, which share the rows of a fragment ----

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// ---- at the end of a row; references are in powers of two ----

// The sink is one more score, which has no value: the reference and the sum take it in. What O must be multiplied by
// because of the new reference.
__device__ inline float take_in_sink(float& reference, float& sum, float sink) {
  const float raised = fmaxf(reference, sink * kLog2e);
  const float scale = reference == -kInfinity ? 0.0f : exp2_approx(reference - raised);
  sum = sum * scale + (raised == -kInfinity ? 0.0f : exp2_approx(sink * kLog2e - raised));
  reference = raised;
  return scale;
}

// Nothing visible leaves a sum of zero.
__device__ inline void store_lse(const KernelParams& params, Int64 row, float reference, float sum) {
  const float lse = sum == 0.0f ? -kInfinity : reference + log2_approx(sum);
  params.lse[row] = config.lse == Lse::log2 ? lse : lse * kLn2;
}

// `top`: the row's largest score. fmaxf drops NaN; the sum does not.
__device__ inline void store_max_logit(const KernelParams& params, Int64 row, float top, float sum) {
  params.max_logit[row] = sum != sum ? sum : kScaleFolded ? top * config.scale : top;
}

}  // namespace flashjit
