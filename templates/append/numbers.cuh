// Pieces of new rows, as numbers and as a cache holds them.
#pragma once

#include "config.gen.cuh"
#include "templates/append/layout.h"
#include "templates/append/narrow.cuh"
#include "templates/device.cuh"

namespace flashjit::appending {

using RowElement = Bits<config.element>;

template <int copy_bytes>
__device__ inline uint4 load_piece(const RowElement* from) {
  static_assert(sizeof(RowElement) * kPieceColumns == sizeof(uint4));
  if constexpr (copy_bytes == 16) {
    return *reinterpret_cast<const uint4*>(from);
  } else if constexpr (copy_bytes == 8) {
    const uint2 low = reinterpret_cast<const uint2*>(from)[0], high = reinterpret_cast<const uint2*>(from)[1];
    return make_uint4(low.x, low.y, high.x, high.y);
  } else {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (copy_bytes == 4) {
        words[i] = reinterpret_cast<const u32*>(from)[i];
      } else {
        words[i] = from[2 * i] | static_cast<u32>(from[2 * i + 1]) << 16;
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// ---- numbers ----

struct Columns {
  float of[kPieceColumns];
};

__device__ inline float float_of(RowElement bits) {
  if constexpr (config.element == Element::bf16) return float_from_bf16(bits);
  else return float_from_f16(bits);
}

__device__ inline Columns columns_of(uint4 piece) {
  const u32 words[4] = {piece.x, piece.y, piece.z, piece.w};
  Columns c;
#pragma unroll
  for (int i = 0; i < kPieceColumns; ++i) c.of[i] = float_of(static_cast<RowElement>(words[i / 2] >> i % 2 * 16));
  return c;
}

__device__ inline uint4 piece_of(const Columns& c) {
  constexpr Element kElement = config.element;
  return make_uint4(pack<kElement>(c.of[0], c.of[1]), pack<kElement>(c.of[2], c.of[3]),
                    pack<kElement>(c.of[4], c.of[5]), pack<kElement>(c.of[6], c.of[7]));
}

// Returns the columns as a cache of 8 bits holds them.
template <Narrow cache>
__device__ inline uint2 narrowed_piece(const Columns& c, float scale) {
  u32 words[2] = {};
#pragma unroll
  for (int i = 0; i < kPieceColumns; ++i) words[i / 4] |= narrowed<cache>(__fdiv_rn(c.of[i], scale)) << i % 4 * 8;
  return make_uint2(words[0], words[1]);
}

}  // namespace flashjit::appending
