// Elements of K, V and Q that have 8 bits and are widened before matrix instructions read them.
#pragma once

#include "templates/scales.cuh"

namespace flashjit {

// An element of K or V, and one of Q, as memory holds them.
using Cached = BitsOf<cache_bytes(config)>::type;
using Asked = BitsOf<query_bytes(config)>::type;

// ---- from four bytes to halves, which hold every number of these types ----

struct HalfPairs {
  u32 low, high;  // They hold elements 0 and 1, and 2 and 3.
};

__device__ inline u32 multiply_halves(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ inline u32 add_halves(u32 a, u32 b) {
  u32 sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

// Converts two e4m3, each the high byte of a half whose low byte is 0. GPUs before sm_89 have no instruction for it:
// with the bits behind the sign moved down by one, the byte is the half of 2^-8 of its value. NaN becomes 480 in this
// way. 144 times the value is finite for all other bytes, and so 0 times that product, which is added, changes only
// NaN.
__device__ inline u32 halves_of_high_e4m3(u32 bytes) {
  constexpr u32 k256 = 0x5c005c00, k36864 = 0x78807880;
  const u32 small = (bytes & 0x80008000) | (bytes & 0x7f007f00) >> 1;
  const u32 zero = multiply_halves(multiply_halves(small, k36864), 0);
  u32 halves;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(halves) : "r"(small), "r"(k256), "r"(zero));
  return halves;
}

template <Narrow narrow>
__device__ inline HalfPairs halves_of(u32 bytes) {
  HalfPairs pairs;
  if constexpr (narrow == Narrow::int8) {
    // The half that is 1152 above an element has in its last byte the element plus 128.
    constexpr u32 kMinus1152 = 0xe480e480;
    const u32 biased = bytes ^ 0x80808080;
    pairs = {add_halves(__byte_perm(biased, 0x64646464, 0x4140), kMinus1152),
             add_halves(__byte_perm(biased, 0x64646464, 0x4342), kMinus1152)};
    return pairs;
  }
#if __CUDA_ARCH__ >= 890
  if constexpr (narrow == Narrow::e4m3) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(pairs.low), "=r"(pairs.high)
        : "r"(bytes));
    return pairs;
  }
#endif
  // An e5m2 is the first byte of a half.
  pairs = {__byte_perm(bytes, 0, 0x1404), __byte_perm(bytes, 0, 0x3424)};
  if constexpr (narrow == Narrow::e4m3) pairs = {halves_of_high_e4m3(pairs.low), halves_of_high_e4m3(pairs.high)};
  return pairs;
}

__device__ inline u32 element_pair_of(u32 halves) {
  if constexpr (config.element == Element::f16) return halves;
  return pack<config.element>(float_from_f16(static_cast<u16>(halves)), float_from_f16(static_cast<u16>(halves >> 16)));
}

// Widens eight elements to the type of products.
template <Narrow narrow>
__device__ inline uint4 widened(uint2 bytes) {
  const HalfPairs first = halves_of<narrow>(bytes.x), second = halves_of<narrow>(bytes.y);
  return {element_pair_of(first.low), element_pair_of(first.high), element_pair_of(second.low),
          element_pair_of(second.high)};
}

}  // namespace flashjit
