// The first launches for lists of tiles find what tensors of a mask hold in a tile (compiler/analysis/tile_pairs.h).
#pragma once

#include "templates/tile_lists/axis.cuh"
#include "tile_pairs.gen.cuh"

namespace flashjit {

template <Along along>
constexpr int kTileValues = along == Along::keys ? TilePairs::kKeyValues : TilePairs::kQueryValues;

// Returns false for a sequence without queries or keys. A call may give it tensors that are too small for its
// positions, as no pair of them is looked at.
__device__ inline bool has_pairs(const Sequence& seq) { return seq.q_len > 0 && seq.k_len > 0; }

// A warp finds the least and the most of each value at the positions begin..end-1.
template <Along along, int i = 0>
__device__ inline void find_bounds(const KernelParams& params, const Sequence& seq, int begin, int end,
                                   ReadBounds* bounds) {
  if constexpr (i < kTileValues<along>) {
    const auto at = [&](int position) { return TilePairs::value(TileValue<along, i>(), params, seq, position); };
    const int lane = threadIdx.x % 32;
    ReadBounds found;
    found.least = found.most = at(min(begin + lane, end - 1));
#pragma unroll 4
    for (int position = begin + lane + 32; position < end; position += 32) {
      const Int64 own = at(position);
      found.least = min(found.least, own);
      found.most = max(found.most, own);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      found.least = min(found.least, __shfl_xor_sync(0xffffffff, found.least, distance));
      found.most = max(found.most, __shfl_xor_sync(0xffffffff, found.most, distance));
    }
    if (lane == 0) bounds[i] = found;
    find_bounds<along, i + 1>(params, seq, begin, end, bounds);
  }
}

// A block is a warp, and has a tile.
template <Along along>
__device__ inline void write_tile_bounds(const KernelParams& params, ReadBounds* bounds) {
  using Axis = TileAxis<along>;
  const int number = blockIdx.x / config.list_heads, head = blockIdx.x % config.list_heads;
  const auto [b, tile] = Axis::tile_of(params, number);
  const Sequence seq = sequence_of(params, b, head);
  const int begin = tile * Axis::kTile, end = min(begin + Axis::kTile, Axis::length(seq));
  if (begin < end && has_pairs(seq))
    find_bounds<along>(params, seq, begin, end, bounds + Int64{blockIdx.x} * kTileValues<along>);
}

// Evaluates a condition that reads for each query and key, once for all pairs. A block has two tiles.
template <int i = 0>
__device__ inline void ask(const KernelParams& params, const Sequence& seq, const int4& ends, unsigned char* answers) {
  if constexpr (i < TilePairs::kConditions) {
    bool some = false, all = true;
    constexpr int kStep = TilePairs::step(Parameter<i>());
    for (int q = ends.x + threadIdx.x / 32 * kStep; q < ends.y; q += kAnswerThreads / 32 * kStep) {
#pragma unroll 4
      for (int k = ends.z + threadIdx.x % 32; k < ends.w; k += 32) {
        const bool holds = TilePairs::condition(Parameter<i>(), params, seq, q, k, ends.x, ends.z);
        some = some || holds;
        all = all && holds;
      }
    }
    some = __syncthreads_or(some);
    all = __syncthreads_and(all);
    if (threadIdx.x == 0) answers[i] = (some ? kSomeHold : 0) | (all ? kAllHold : 0);
    ask<i + 1>(params, seq, ends, answers);
  }
}

// Returns where the answers of a pair of tiles are.
__device__ inline Int64 pair_of_tiles(const KernelParams& params, int b, int head, int tile_q, int tile_kv) {
  using Queries = TileAxis<Along::queries>;
  using Keys = TileAxis<Along::keys>;
  const Int64 of_head = static_cast<Int64>(b) * config.list_heads + head;
  return (of_head * Queries::most_tiles(params) + tile_q) * Keys::most_tiles(params) + tile_kv;
}

__device__ inline void write_answers(const KernelParams& params, unsigned char* answers) {
  using Queries = TileAxis<Along::queries>;
  using Keys = TileAxis<Along::keys>;
  const int tiles_kv = Keys::most_tiles(params), tiles_q = Queries::most_tiles(params);
  const int tile_kv = blockIdx.x % tiles_kv, tile_q = blockIdx.x / tiles_kv % tiles_q;
  const int of_head = blockIdx.x / tiles_kv / tiles_q, b = of_head / config.list_heads,
            head = of_head % config.list_heads;
  const Sequence seq = sequence_of(params, b, head);
  const int q = tile_q * Queries::kTile, k = tile_kv * Keys::kTile;
  if (q >= seq.q_len || k >= seq.k_len) return;
  const int4 ends = make_int4(q, min(q + Queries::kTile, seq.q_len), k, min(k + Keys::kTile, seq.k_len));
  ask(params, seq, ends, answers + pair_of_tiles(params, b, head, tile_q, tile_kv) * TilePairs::kConditions);
}

}  // namespace flashjit
