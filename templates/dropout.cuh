// Dropout as kernels use it: which weights of two tiles a lane keeps.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"
#include "templates/dropout_tiles.h"

namespace flashjit {

constexpr bool kDrops = config.dropped > 0;
constexpr float kDropoutFactor = dropout_factor(config.dropped);
constexpr float kKeptShare = 1.0f - config.dropped / 256.0f;  // one over it

// Where kernels keep the key of a launch: 8 bytes of shared memory.
__device__ inline void store_dropout_key(u32 address, const KernelParams& params) {
  const PhiloxKey key = dropout_key(params);
  store_shared(address, key.low);
  store_shared(address + 4, key.high);
}
__device__ inline PhiloxKey load_dropout_key(u32 address) {
  PhiloxKey key;
  load_shared_pair(key.low, key.high, address);
  return key;
}

// x, or 0.
__device__ inline float keep(float x, u32 mask) { return __uint_as_float(__float_as_uint(x) & mask); }

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
  // Of `tiles` tiles side by side, the first of which has this number.
  template <int tiles>
  __device__ void draw_row(KeptPair (&kept)[(tiles + 1) / 2], u32 row, u32 first, u32 lane) const {
#pragma unroll
    for (int i = 0; i < tiles; i += 2) {
      if (i + 1 < tiles) kept[i / 2] = pair(row, dropout_place_of_column(first + i + call_of_lane(lane), lane));
      else kept[i / 2] = single(row, dropout_place_of_column(first + i, lane));
    }
  }
};

// Weights as operands: 0 where they are dropped.
template <WeightRows rows, int tiles>
__device__ inline void drop(u32 (&p)[tiles][4], const KeptPair (&kept)[(tiles + 1) / 2]) {
  const u32 lane = recompute(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < tiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) p[i][j] &= mask_of_operand<rows>(kept[i / 2], i % 2, j, lane);
}

}  // namespace flashjit
