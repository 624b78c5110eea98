// Probabilities of 8 bits: the first operand of P V is e4m3, which ends at 448 and at 2^-9.
#pragma once

#include "templates/hopper/scores.cuh"
#include "templates/values/narrow_weights.cuh"

namespace flashjit {

__device__ inline void convert_narrow(Probabilities& p, const Scores& s) {
#pragma unroll
  for (int i = 0; i < kTilesOfP; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* x = s + first_score(i, j);
      p[i][j] = pack_e4m3(x[0], x[1], x[4], x[5]);
    }
}

// With linear_exp, the bits of a weight are computed from its exponent. Read as a number, the bits of e4m3 are 8 (x +
// 7) for 2^x where x is whole, and lie on a straight line between: the value that they stand for is above 2^x by up to
// 6 %, and by 4 % in the mean, which is 0.457 of a bit. So the exponent, less 0.457 bits and rounded, is the weight.
// The least half is 2^-24: in units of it, converting an exponent to a half rounds it.
constexpr bool kLinear = interpolates(config);
constexpr float kExponentUnit = kLinear ? 0x1p-21f : 1.0f, kExponentOfBits = kLinear ? 7 - 0.457f / 8 : 0.0f;
constexpr u32 kLargestWeight = 126;  // 127 is NaN

// Returns the bits of four weights, from their exponents. Each half of `largest` rises to the largest weight seen.
__device__ inline u32 pack_bits(float a, float b, float c, float d, u32& largest) {
  u32 low, high;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(b), "f"(a));
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(d), "f"(c));
  largest = max_of_halves(largest, max_of_halves(low, high));
  return __byte_perm(low, high, 0x6420);
}

// Returns true if some weight is too large for 8 bits, or no number.
__device__ inline bool convert_linear(Probabilities& p, const Scores& s) {
  u32 largest = 0;
#pragma unroll
  for (int i = 0; i < kTilesOfP; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* x = s + first_score(i, j);
      p[i][j] = pack_bits(x[0], x[1], x[4], x[5], largest);
    }
  return largest >> 16 > kLargestWeight || (largest & 0xffff) > kLargestWeight;
}

}  // namespace flashjit
