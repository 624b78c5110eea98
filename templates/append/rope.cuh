// Rotary positions: the columns that form a pair, and the angle by which a pair turns.
#pragma once

#include "templates/kernel_params.h"
#include "templates/append/rope.h"
#include "templates/words.cuh"

namespace flashjit::rope {

constexpr int kDims = config.rope_dims, kFrom = config.rope_from, kPairs = kDims / 2;
constexpr bool kHalf = config.rope == Rope::half;
constexpr bool kComputes = config.rope_base > 0;  // True if the kernel computes the angles.
// They lie in memory, because each thread reads others.
__device__ constexpr RopeTurns kTurns = kComputes ? rope_turns(kDims, config.rope_base) : RopeTurns{};

__device__ inline bool rotates(int column) { return (kFrom == 0 || column >= kFrom) && column < kFrom + kDims; }
// is_first() returns whether this column comes first in its pair, pair_of() the number of the pair, and partner_of()
// the other column of the pair with rope=half.
__device__ inline bool is_first(int column) { return kHalf ? column < kFrom + kPairs : column % 2 == 0; }
__device__ inline int pair_of(int column) {
  const int at = column - kFrom;
  return kHalf ? (is_first(column) ? at : at - kPairs) : at / 2;
}
__device__ inline int partner_of(int column) { return is_first(column) ? column + kPairs : column - kPairs; }

struct Angle {
  float cos, sin;
};
// `turns` are those of the pair, where they are computed.
__device__ inline Angle angle_of(const KernelParams& p, int position, int pair, u64 turns) {
  if constexpr (kComputes) {
    constexpr float kRadians = 3.14159265358979f * 0x1p-31f;
    const float radians = static_cast<float>(static_cast<int>(turns * static_cast<u64>(position) >> 32)) * kRadians;
    return {cos_approx(radians), sin_approx(radians)};
  } else {
    const Int64 at = static_cast<Int64>(position) * kPairs + pair;
    return {p.cos[at], p.sin[at]};
  }
}

}  // namespace flashjit::rope
