// The query tiles of all heads, and their places in the workspace.
#pragma once

#include "templates/hopper_backward/layout.h"
#include "templates/sequence.cuh"

namespace flashjit {

constexpr bool kPacked = kRows == Rows::packed;

// The number of a query tile of a head among those of all: where its part of the workspace is.
__device__ inline Int64 workspace_tile(const KernelParams& params, const Sequence& seq, int head, int tile) {
  if constexpr (kPacked)
    return static_cast<Int64>(head) * params.tiles_q + static_cast<int>(seq.q_token) / config.tile_q + seq.b + tile;
  return (static_cast<Int64>(seq.b) * config.heads_q + head) * params.tiles_q + tile;
}

// Where it is counted how many tiles of keys of a KV head are done, and how many there are. (Dense sequences.)
__device__ inline int* done_of(const Sequence& seq, int* done) { return done + seq.b * config.heads_kv + seq.hk; }
__device__ inline int key_tiles(const KernelParams& params) {
  return (params.k_len + config.tile_kv - 1) / config.tile_kv;
}

// Of the launches before and after the loop, which begins with the first heads: what was written last is in L2 yet.
__device__ inline int last_first() { return static_cast<int>(gridDim.x - 1 - blockIdx.x); }

// The tile of a number. Of packed sequences it may lie behind the end.
struct QueryTile {
  Sequence seq;
  int tile;
};
__device__ inline QueryTile query_tile(const KernelParams& params, int number) {
  const int at = number % params.tiles_q, head = number / params.tiles_q;
  if constexpr (kPacked) {
    const NumberedTile numbered = numbered_tile(params.offsets_q, params.batch, config.tile_q, at);
    return {sequence_of(params, numbered.b, head), numbered.tile};
  }
  return {sequence_of(params, head / config.heads_q, head % config.heads_q), at};
}

}  // namespace flashjit
