// Stores of the backward kernels: pairs of neighbouring columns, or eight of them, and whole rows of gradients.
#pragma once

#include "templates/hopper_backward/layout.h"
#include "templates/sequence.cuh"

namespace flashjit {

// Stores two neighbouring elements from element `at` on, which is even.
template <Element element>
__device__ inline void store_pair(void* tensor, Int64 at, float a, float b) {
  if constexpr (element == Element::f32) {
    auto* pair = reinterpret_cast<float2*>(static_cast<float*>(tensor) + at);
    if constexpr (config.accumulate) {
      const float2 there = *pair;
      a += there.x, b += there.y;
    }
    *pair = make_float2(a, b);
  } else {
    reinterpret_cast<u32*>(static_cast<u16*>(tensor) + at)[0] = pack<element>(a, b);
  }
}

// Four lanes at this distance from each other have four values each. After the exchange the first lane has the first
// value of each lane, the second lane the second one, and so on.
template <int distance, class T>
__device__ inline void exchange(T (&values)[4]) {
  const u32 lane = threadIdx.x / distance % 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const T other = __shfl_xor_sync(0xffffffff, upper ? values[i] : values[i | bit], bit * distance);
      (upper ? values[i] : values[i | bit]) = other;
    }
  }
}

// Stores 64 rows of a warpgroup's sums, from `first` on, in a tensor whose row 0 begins at element `begin`.
template <Element output, int dims>
__device__ inline void store_rows(void* tensor, Int64 begin, Int64 stride, int first, int end, float scale,
                                  const float (&sums)[dims / 2]) {
  const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup, lane = thread % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + static_cast<int>(thread / 32 * 16 + thread % 32 / 4) + 8 * h;
    const Int64 at = begin + row * stride;
    if constexpr (output == Element::f32) {
      if (row >= end) continue;
#pragma unroll
      for (int j = 0; j < dims / 8; ++j)
        store_pair<output>(tensor, at + j * 8 + lane * 2, sums[4 * j + 2 * h] * scale, sums[4 * j + 2 * h + 1] * scale);
    } else {
#pragma unroll
      for (int four = 0; four < dims / 8; four += 4) {
        u32 pairs[4] = {};
#pragma unroll
        for (int i = 0; i < 4 && four + i < dims / 8; ++i)
          pairs[i] = pack<output>(sums[4 * (four + i) + 2 * h] * scale, sums[4 * (four + i) + 2 * h + 1] * scale);
        // Before, a lane has a pair of columns of each group of eight, and afterwards all eight columns of its own
        // group.
        exchange<1>(pairs);
        if (row < end && four + static_cast<int>(lane) < dims / 8)
          *reinterpret_cast<uint4*>(static_cast<u16*>(tensor) + at + (four + lane) * 8) =
              make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
}

}  // namespace flashjit
