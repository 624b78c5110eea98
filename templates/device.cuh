// Device vocabulary without any toolkit header: types, conversions, and one function per instruction we rely on.
#pragma once

#include "templates/kernel_config.h"
#include "templates/kernel_params.h"

namespace flashjit {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// The type by which an element of this many bytes is loaded and stored.
template <int bytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  using type = unsigned char;
};
template <>
struct BitsOf<2> {
  using type = u16;
};
template <>
struct BitsOf<4> {
  using type = u32;
};
template <Element element>
using Bits = typename BitsOf<size_of(element)>::type;

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
// No header defines INFINITY here.
#define kInfinity __uint_as_float(0x7f800000)

// ---- shared memory ----

__device__ inline u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ inline void store_shared(u32 address, u32 value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ inline void store_shared(u32 address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

__device__ inline u32 load_shared_word(u32 address) {
  u32 value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline void load_shared_pair(u32& a, u32& b, u32 address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address) : "memory");
}
__device__ inline uint4 load_shared(u32 address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// ---- asynchronous copies ----

// Copies `bytes` (4, 8 or 16) from global to shared memory; writes zeros and reads nothing when `valid` is false.
// 16-byte copies bypass L1 (.cg): a K/V tile is read once per block.
template <int bytes>
__device__ inline void copy_async(u32 shared, const void* global, bool valid) {
  const int source_bytes = valid ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(bytes),
                 "r"(source_bytes)
                 : "memory");
  }
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int pending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Returns the same value, but hides from the optimiser that it is the same. Values derived from the result inside a
// loop are then computed there again, instead of being kept in registers (dozens of hoisted addresses) across the loop.
__device__ inline u32 recompute(u32 value) {
  asm volatile("" : "+r"(value));
  return value;
}

// ---- matrix fragments ----

// Loads four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(u32 (&f)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(address)
               : "memory");
}

__device__ inline void load_matrices_transposed(u32 (&f)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(address)
               : "memory");
}

// Computes d (16x8, fp32) += a (16x16) * b (16x8). Lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the
// next one.
template <Element element>
__device__ inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (element == Element::bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Computes d += a (16x32) * b (32x8) of elements of 8 bits. A word of b, or of a, has four of the 32 side by side: four
// keys of P V.
#define FLASHJIT_MMA_NARROW(types)                                           \
  asm("mma.sync.aligned.m16n8k32.row.col.f32." types                         \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <Narrow of_a, Narrow of_b>
__device__ inline void mma_narrow(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (of_a == Narrow::e4m3 && of_b == Narrow::e4m3) FLASHJIT_MMA_NARROW("e4m3.e4m3");
  else if constexpr (of_a == Narrow::e4m3) FLASHJIT_MMA_NARROW("e4m3.e5m2");
  else if constexpr (of_b == Narrow::e4m3) FLASHJIT_MMA_NARROW("e5m2.e4m3");
  else FLASHJIT_MMA_NARROW("e5m2.e5m2");
}
#undef FLASHJIT_MMA_NARROW

// ---- conversions ----

// Packs two floats into one register of 16-bit elements, with `low` in the low half.
template <Element element>
__device__ inline u32 pack(float low, float high) {
  u32 packed;
  if constexpr (element == Element::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// Packs two floats like pack(), and turns negative numbers into 0.
template <Element element>
__device__ inline u32 pack_positive(float low, float high) {
  u32 packed;
  if constexpr (element == Element::bf16) {
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// Packs four floats as e4m3, the first in the low byte. A number that is too large becomes 448.
__device__ inline u32 pack_e4m3(float a, float b, float c, float d) {
  u32 packed;
  asm("{\n .reg .b16 low, high;\n cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      " cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n mov.b32 %0, {low, high};\n}"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

__device__ inline float float_from_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }

__device__ inline float float_from_f16(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// ---- global memory ----

__device__ inline void store_global(void* address, uint2 value) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(value.x), "r"(value.y) : "memory");
}

// Prefetches a line of memory to L2.
__device__ inline void prefetch_line(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// ---- one launch after the other: from sm_90 on one may begin before the other has ended ----

// The next launch may begin as soon as all blocks of this one have come here or are done.
__device__ inline void release_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the launch before is done, and its results can be read.
__device__ inline void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- counters: whoever finds the sum sees everything that a thread has seen written before it added ----

__device__ inline void add_released(int* counter, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
__device__ inline void store_released(int* counter, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
__device__ inline int load_acquired(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// ---- arithmetic ----

// Returns 2^x. x = -inf gives exactly 0, and subnormal results are flushed.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns the sine of x with an error of 2^-20.5, from -pi to pi.
__device__ inline float sin_approx(float x) {
  float y;
  asm("sin.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float cos_approx(float x) {
  float y;
  asm("cos.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace flashjit
