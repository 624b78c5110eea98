// Weights of 8 bits, as products take them: e4m3, which ends at 448 and at 2^-9.
#pragma once

#include "templates/device.cuh"

namespace flashjit {

// Returns the first score of a word. Operand A wants four keys side by side. A thread has two and two instead, and V is
// transposed with its keys in that order (transposed_tile.cuh). Word j belongs to row j % 2.
__device__ constexpr int first_score(int i, int j) { return 16 * i + 8 * (j / 2) + 2 * (j % 2); }

// Returns whether some weight is as large as e4m3 gets. No weight is negative, so bits have the order of weights.
// Adding 2 gives the sign bit only to those of 448 and of NaN, 0x7e and 0x7f.
template <int steps>
__device__ inline bool has_large_narrow(const u32 (&p)[steps][4]) {
  u32 signs = 0;
#pragma unroll
  for (int i = 0; i < steps; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) signs |= p[i][j] + 0x02020202;
  return (signs & 0x80808080) != 0;
}

}  // namespace flashjit
