// Computes the sums of rows as a product by itself: P times ones (sums_apart).
#pragma once

#include "templates/hopper/softmax.cuh"

namespace flashjit {

// Issues a step of the product. The ones are the same in every step.
__device__ inline void multiply_ones(float (&sums)[4], const u32 (&p)[4], u32 ones, int accumulate) {
  asm volatile(
      "{\n.reg .pred more;\n .reg .b64 ones;\n"
      "setp.ne.b32 more, %9, 0;\n mov.b64 ones, {%8, %10};\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, ones, more, 1, 1;\n}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(ones), "r"(accumulate), "n"(kDescriptorHigh));
}

// Multiplies P of a tile by the ones, beside the last piece of P V, which commits this product as well.
__device__ inline void multiply_ones(float (&sums)[4], const Probabilities& p, u32 ones, bool on_top) {
#pragma unroll
  for (int i = 0; i < kTilesOfP; ++i) multiply_ones(sums, p[i], descriptor(ones), i > 0 || on_top);
}
__device__ inline void add_sums(RowStates& rows, const float (&sums)[4]) {
  rows.sum[0] += sums[0];
  rows.sum[1] += sums[2];
}
// Sums that have been taken in are rescaled with O.
__device__ inline void rescale_sums(RowStates& rows, const float (&factor)[2]) {
  rows.sum[0] *= factor[0];
  rows.sum[1] *= factor[1];
}

// Kernels without a product of ones have no such member: a member that nobody reads changes which registers ptxas
// takes.
template <bool apart>
struct OwnSums {
  float of_tiles[4];  // The sums of the tiles that are being multiplied; all four of a row are alike.
};
template <>
struct OwnSums<false> {};

}  // namespace flashjit
