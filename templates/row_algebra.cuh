// The steps of softmax for a row, which all loops share: scales, references, the sink, and a row's results.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"

namespace flashjit {

// A score becomes exp2((s - reference) * kLog2Scale). Without a score function, and without scales that are known only
// at run time, the scale of the scores is folded into the exponent.
constexpr bool kScaleFolded = folds_scale(config);
constexpr float kLog2Scale = kScaleFolded ? config.scale * kLog2e : kLog2e;
// The factor from a score to its natural unit.
constexpr float kNaturalScale = kScaleFolded ? config.scale : 1.0f;
// The product of a larger score and kLog2Scale has a rounding error, 2^-24 of it, that is no longer small in an
// exponent.
constexpr float kLargeScore = 0x1p20f / kLog2Scale;

// The factor from the LSE of the spec to natural units.
constexpr float kNaturalLse = config.lse == Lse::log2 ? kLn2 : 1.0f;

// ---- over the four lanes of a quad, which share the rows of a fragment ----

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// ---- a step of softmax: the reference of a row rises to the maximum of a tile ----

// Returns the factor for O; the sum has been multiplied already. A row that has seen no key keeps -infinity, and (-inf)
// - (-inf) must not become NaN.
__device__ inline float raise_reference(float& reference, float& sum, float maximum) {
  const float raised = fmaxf(reference, maximum);
  const float factor = raised == -kInfinity ? 1.0f : exp2_approx((reference - raised) * kLog2Scale);
  reference = raised;
  sum *= factor;
  return factor;
}

// A large reference must be subtracted, exactly, before scores are scaled.
__device__ inline bool is_large(float reference) { return fabsf(reference) > kLargeScore && reference != -kInfinity; }

// ---- at the end of a row; references are in natural units, because the largest floats, which some use as a mask,
// would be infinite in powers of two ----

// Takes the sink of a query head into the reference and the sum, if the spec has sinks. A sink is one more score, which
// has no value. Returns the factor by which O must be multiplied because of the new reference.
__device__ inline float add_sink(const KernelParams& params, int h, float& reference, float& sum) {
  if constexpr (!config.sink) return 1.0f;
  const float sink = params.sink[h];
  const float raised = fmaxf(reference, sink);
  const float scale = reference == -kInfinity ? 0.0f : exp2_approx((reference - raised) * kLog2e);
  sum = sum * scale + (raised == -kInfinity ? 0.0f : exp2_approx((sink - raised) * kLog2e));
  reference = raised;
  return scale;
}

// Returns the LSE in the unit that the spec wants.
__device__ inline float lse_of(float reference, float sum) {
  const float in_log2 = log2_approx(sum);
  return config.lse == Lse::log2 ? reference * kLog2e + in_log2 : reference + in_log2 * kLn2;
}
// A row that sees no key has a sum of zero.
__device__ inline void store_lse(const KernelParams& params, Int64 row, float reference, float sum) {
  if constexpr (config.lse == Lse::none) return;
  const float lse = lse_of(reference, sum);
  params.lse[row] = sum == 0.0f ? -kInfinity : lse;
}

// With config.accumulate a row continues from the LSE and O that earlier calls left: O becomes `own` times the result
// of this call, plus `before` times the earlier O. A row that sees no key in this call `keeps` all of the earlier O.
struct Continued {
  float own, before, lse;
  bool keeps;
};
// `earlier` is the LSE of earlier calls, in natural units.
__device__ inline Continued continue_from(float earlier, float reference, float sum) {
  const float raised = fmaxf(reference, earlier);
  const float own = sum == 0.0f ? 0.0f : sum * exp2_approx((reference - raised) * kLog2e);  // NaN stays NaN
  const float before = earlier == -kInfinity ? 0.0f : exp2_approx((earlier - raised) * kLog2e);
  const float total = own + before;
  return {own / total, before / total, lse_of(raised, total), sum == 0.0f};
}
__device__ inline float earlier_lse(const KernelParams& params, Int64 row) { return params.lse[row] * kNaturalLse; }
// All lanes of a quad read the earlier LSE here. Only when all have read it, one of them may store the new one.
__device__ inline Continued continue_row(const KernelParams& params, Int64 row, float reference, float sum) {
  return continue_from(earlier_lse(params, row), reference, sum);
}
// If `before` is 0, O may hold anything, because nobody has written it yet.
__device__ inline float2 earlier_pair(const float* at, float before, bool is_there) {
  return is_there && before != 0.0f ? *reinterpret_cast<const float2*>(at) : make_float2(0.0f, 0.0f);
}

// `top` is the row's largest score. fmaxf drops NaN; the sum does not.
__device__ inline void store_max_logit(const KernelParams& params, Int64 row, float top, float sum) {
  if constexpr (!config.max_logit) return;
  params.max_logit[row] = sum != sum ? sum : kScaleFolded ? top * config.scale : top;
}

// Stores the results that the spec asks for beside O.
__device__ inline void store_row_results(const KernelParams& params, Int64 row, float reference, float sum, float top) {
  store_lse(params, row, reference, sum);
  store_max_logit(params, row, top, sum);
}

}  // namespace flashjit
