// The vocabulary of the warps that transpose V of 8 bits, because products of 8 bits read their second operand along
// the dimension that is summed up. Its lines stand in loop.gen.cuh.
#pragma once

#include "templates/mla/producer.cuh"
#include "templates/values/transposed_tile.cuh"

namespace flashjit {

// Replaces the values of keys that no query sees by zeros: they may be NaN.
struct SeenRows {
  int end;  // The first such key of the tile.
  __device__ u32 operator()(u32 pair, int key) const { return key + 1 < end ? pair : key < end ? pair & 0xffff : 0; }
};

struct TransposerState {
  const KernelParams& params;
  const SharedMemory& shared;
  const u32 warp = threadIdx.x / 32 - kFirstTransposer;
  Turn turn = {};

  __device__ void await_full_keys(u32 stage, u32 parity) const {
#pragma unroll
    for (int piece = 0; piece < kMlaPieces; ++piece) wait_barrier(shared.full(stage, piece), parity);
  }
  __device__ void transpose(int tile, int end) const {
    const u32 stage = turn.stage(), to = shared.transposed(stage), from = shared.k(stage);
    const int seen = end - tile * kTileKv;
    if (seen >= kTileKv) transpose_all(to, from, AllRows());
    else transpose_all(to, from, SeenRows{seen});
  }
  template <class Filter>
  __device__ void transpose_all(u32 to, u32 from, const Filter& filter) const {
    constexpr int kUnits = kMlaKeys / kUnitKeys, kBlocksAtOnce = 2;
    transpose_tile<kMlaTransposers, kMlaKeys, config.head_dim_v, kLayout.v.panel_bytes(), kBlocksAtOnce, kUnits>(
        to, from, warp, filter);
  }
  __device__ void complete() const {
    if (lane_id() == 0) arrive(shared.values_full(turn.stage()));
  }
  __device__ void release_keys() const { release_keys_of(shared, turn.stage()); }
};

}  // namespace flashjit
