// Functions that generated mask and score functions call. They are accurate to a few ulp of fp32: a score function is
// evaluated once per score, and its error goes straight into the exponent.
#pragma once

#include "templates/device.cuh"
#include "templates/symbolic.cuh"

namespace flashjit {

// Returns the quotient, rounded down; floor_mod() returns its remainder. The divisor is positive. Ints are 32 or 64
// bits wide, and the wider of the two decides.
template <class A, class B>
__device__ inline auto floor_div(A a, B b) {
  return a / b - (a % b < 0 ? 1 : 0);
}
template <class A, class B>
__device__ inline auto floor_mod(A a, B b) {
  return a % b + (a % b < 0 ? b : 0);
}

template <class A, class B>
__device__ inline auto min_i(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
__device__ inline auto max_i(A a, B b) {
  return a > b ? a : b;
}
template <class A>
__device__ inline auto abs_i(A a) {
  return a < 0 ? -a : a;
}

__device__ inline float min_f(float a, float b) { return fminf(a, b); }
__device__ inline float max_f(float a, float b) { return fmaxf(a, b); }
__device__ inline float abs_f(float x) { return fabsf(x); }

__device__ inline bool bit_(Int64 bits, Int64 index) { return (bits >> index & 1) != 0; }

__device__ inline float to_float(int x) { return static_cast<float>(x); }
__device__ inline float to_float(Int64 x) { return static_cast<float>(x); }

__device__ inline float exp_(float x) { return expf(x); }
__device__ inline float log_(float x) { return logf(x); }
__device__ inline float sqrt_(float x) { return sqrtf(x); }
// Computes tanh as 1 - 2 / (e^2x + 1), by two special-function instructions, with an absolute error near 1e-7
// (tanh.approx has 5e-4 relative). If e^2x overflows the result is 1, and if it underflows the result is -1. Near 0 the
// difference cancels, and two terms of the series leave an error of 5e-6 of the value.
__device__ inline float tanh_(Scaled s) {
  const float x = s;
  const float series = x * fmaf(x * x, -1.0f / 3, 1.0f);
  const float far = fmaf(-2.0f, reciprocal_approx(exp2_approx(s.x * (s.factor * (2.0f * kLog2e))) + 1.0f), 1.0f);
  return fabsf(x) < 0.03f ? series : far;
}
__device__ inline float tanh_(float x) { return tanh_(scaled(x)); }
__device__ inline float sigmoid_(float x) { return reciprocal_approx(1.0f + exp2_approx(-x * kLog2e)); }

// A score function that is given this takes tanh for every argument. templates/symbolic.cuh has another one for small
// arguments.
struct FullRange {
  template <class X>
  __device__ Scaled tanh_(X x) const {
    return scaled(flashjit::tanh_(x));
  }
};

}  // namespace flashjit
