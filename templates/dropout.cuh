// Dropout as kernels use it: which weights of two tiles a lane keeps.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"
#include "templates/dropout_tiles.h"

namespace flashjit {

constexpr bool kDrops = config.dropped > 0;
constexpr float kDropoutFactor = dropout_factor(config.dropped);

// The two lanes of a call exchange halves of it, which are numbers, and have bits then.
__device__ inline KeptPair exchange_halves(const CallHalves& halves) {
  KeptPair kept;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    kept.own[i] = kept_bytes<config.dropped>(halves.own[i]);
    kept.other[i] = kept_bytes<config.dropped>(__shfl_xor_sync(0xffffffff, halves.other[i], 4));
  }
  return kept;
}

// The calls of a warp, for tiles of a head and a batch index.
template <WeightRows rows>
struct DropoutCalls {
  PhiloxKey key;
  u32 b, h;

  // `row` and `column`: of this lane's call, from dropout_place_of_row() and the like.
  __device__ PhiloxWords call(u32 row, u32 column) const {
    return rows == WeightRows::queries ? philox<kDropoutRounds>({{column, row, h, b}}, key)
                                       : philox<kDropoutRounds>({{row, column, h, b}}, key);
  }
  __device__ KeptPair pair(u32 row, u32 column) const {
    return exchange_halves(halves_of_call<rows>(call(row, column), threadIdx.x % 32));
  }
  // Of one tile, whose call both lanes make.
  __device__ KeptPair single(u32 row, u32 column) const {
    const CallHalves halves = halves_of_call<rows>(call(row, column), threadIdx.x % 32);
    KeptPair kept;
#pragma unroll
    for (int i = 0; i < 2; ++i) kept.own[i] = kept.other[i] = kept_bytes<config.dropped>(halves.own[i]);
    return kept;
  }
};

}  // namespace flashjit
