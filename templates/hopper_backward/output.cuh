// What the backward kernels write: pairs of neighbouring columns, and whole rows of dK and dV.
#pragma once

#include "templates/hopper_backward/layout.h"
#include "templates/sequence.cuh"

namespace flashjit {

// Two neighbouring elements from element `at` on, which is even.
template <Element element>
__device__ inline void store_pair(void* tensor, Int64 at, float a, float b) {
  if constexpr (element == Element::f32) {
    reinterpret_cast<float2*>(static_cast<float*>(tensor) + at)[0] = make_float2(a, b);
  } else {
    reinterpret_cast<u32*>(static_cast<u16*>(tensor) + at)[0] = pack<element>(a, b);
  }
}

// 64 rows of a warpgroup's sums, from `first` on, to a tensor whose row 0 is at element `begin`.
template <int dims>
__device__ inline void store_rows(void* tensor, Int64 begin, Int64 stride, int first, int end, float scale,
                                  const float (&sums)[dims / 2]) {
  const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
  begin += thread % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + static_cast<int>(thread / 32 * 16 + thread % 32 / 4) + 8 * h;
    if (row >= end) continue;
#pragma unroll
    for (int j = 0; j < dims / 8; ++j) {
      store_pair<config.output>(tensor, begin + row * stride + j * 8, sums[4 * j + 2 * h] * scale,
                                sums[4 * j + 2 * h + 1] * scale);
    }
  }
}

}  // namespace flashjit
