// Several elements at once, by accesses as wide as the alignment of their tensor allows.
#pragma once

#include "templates/device.cuh"

namespace flashjit {

template <int bytes>
struct WordOf {
  using type = uint4;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<4> {
  using type = u32;
};
template <>
struct WordOf<2> {
  using type = u16;
};

// `bytes` bytes as registers hold them, and as accesses of memory that is aligned to `width` see them.
template <int bytes, int width>
union Words {
  static constexpr int kAccess = width < bytes ? width : bytes;
  using Word = typename WordOf<kAccess>::type;
  u32 words[bytes / 4];
  Word each[bytes / kAccess];

  __device__ void load(const void* from) {
#pragma unroll
    for (int i = 0; i < bytes / kAccess; ++i) each[i] = static_cast<const Word*>(from)[i];
  }
  __device__ void store(void* to) const {
#pragma unroll
    for (int i = 0; i < bytes / kAccess; ++i) static_cast<Word*>(to)[i] = each[i];
  }
};

}  // namespace flashjit
