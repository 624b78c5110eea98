// Run-time parameters of masks and scores: entry i of KernelParams::extra. A scalar lies in `data` itself.
#pragma once

#include "templates/device.cuh"

namespace flashjit {

__device__ inline int scalar_i32(const KernelParams& params, int i) {
  return static_cast<int>(reinterpret_cast<Int64>(params.extra[i].data));
}
__device__ inline Int64 scalar_i64(const KernelParams& params, int i) {
  return reinterpret_cast<Int64>(params.extra[i].data);
}
__device__ inline float scalar_f32(const KernelParams& params, int i) {
  return __uint_as_float(static_cast<u32>(reinterpret_cast<u64>(params.extra[i].data)));
}

// Clamps an index that was read from another tensor, which may hold anything, to this parameter's size.
__device__ inline Int64 inside(const KernelParams& params, int i, int dimension, Int64 index) {
  const Int64 last = params.extra_size[i][dimension] - 1;
  return max(0LL, min(index, last));
}

// Returns the address of an element, with one index per dimension.
template <class T, class... Index>
__device__ inline const T* element_of(const KernelParams& params, int i, Index... index) {
  Int64 offset = 0;
  int dimension = 0;
  ((offset += static_cast<Int64>(index) * params.extra[i].stride[dimension++]), ...);
  return static_cast<const T*>(params.extra[i].data) + offset;
}
template <class T, class... Index>
__device__ inline T element(const KernelParams& params, int i, Index... index) {
  return __ldg(element_of<T>(params, i, index...));
}

// Prefetches an element that will be loaded.
template <class T, class... Index>
__device__ inline void prefetch_element(const KernelParams& params, int i, Index... index) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(element_of<T>(params, i, index...)));
}

// `params` may be of another type that has an element() of its own.
template <class Params, class... Index>
__device__ inline float load_f16(const Params& params, int i, Index... index) {
  return float_from_f16(element<u16>(params, i, index...));
}
template <class Params, class... Index>
__device__ inline float load_bf16(const Params& params, int i, Index... index) {
  return float_from_bf16(element<u16>(params, i, index...));
}
template <class Params, class... Index>
__device__ inline float load_f32(const Params& params, int i, Index... index) {
  return element<float>(params, i, index...);
}
template <class Params, class... Index>
__device__ inline int load_i32(const Params& params, int i, Index... index) {
  return element<int>(params, i, index...);
}
template <class Params, class... Index>
__device__ inline Int64 load_i64(const Params& params, int i, Index... index) {
  return element<Int64>(params, i, index...);
}
template <class Params, class... Index>
__device__ inline Int64 load_u32(const Params& params, int i, Index... index) {
  return element<u32>(params, i, index...);
}
template <class Params, class... Index>
__device__ inline int load_u8(const Params& params, int i, Index... index) {
  return element<unsigned char>(params, i, index...);
}

// The number of a parameter, as a type.
template <int i>
struct Parameter {
  static constexpr int value = i;
};

}  // namespace flashjit
