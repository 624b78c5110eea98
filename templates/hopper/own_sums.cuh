// Sums of rows as a product by itself: P times ones (sums_apart).
#pragma once

#include "templates/hopper/softmax.cuh"

namespace flashjit {

// Issued: a step of it. The ones are the same in every step.
__device__ inline void multiply_ones(float (&sums)[4], const u32 (&p)[4], u32 ones, int accumulate) {
  asm volatile(
      "{\n.reg .pred more;\n .reg .b64 ones;\n"
      "setp.ne.b32 more, %9, 0;\n mov.b64 ones, {%8, %10};\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, ones, more, 1, 1;\n}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(ones), "r"(accumulate), "n"(kDescriptorHigh));
}

template <bool apart>
struct OwnSums {
  float of_tiles[4];  // that are multiplied; those of a row are alike

  // Beside the last piece of P V, which commits it.
  __device__ void issue_sums(const Probabilities& p, u32 ones, bool on_top) {
    pin_registers(of_tiles);
    begin_products();
#pragma unroll
    for (int i = 0; i < kTilesOfP; ++i) multiply_ones(of_tiles, p[i], descriptor(ones), i > 0 || on_top);
  }
  __device__ void take_in_sums(RowStates& rows) {
    pin_registers(of_tiles);
    rows.sum[0] += of_tiles[0];
    rows.sum[1] += of_tiles[2];
  }
  __device__ void clear_sums() { clear(of_tiles); }
  __device__ void rescale_sums(const float (&factor)[2]) { rescale(of_tiles, factor); }
  // Those that are taken in fall when O does.
  __device__ static void rescale_taken(RowStates& rows, const float (&factor)[2]) {
    rows.sum[0] *= factor[0];
    rows.sum[1] *= factor[1];
  }
};
template <>
struct OwnSums<false> {
  __device__ static void issue_sums(const Probabilities&, u32, bool) {}
  __device__ static void take_in_sums(RowStates&) {}
  __device__ static void clear_sums() {}
  __device__ static void rescale_sums(const float (&)[2]) {}
  __device__ static void rescale_taken(RowStates&, const float (&)[2]) {}
};

}  // namespace flashjit
