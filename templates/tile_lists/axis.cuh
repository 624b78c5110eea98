// Tiles along one axis of the scores, and the lists of a loop: which tiles of one axis each tile of the other one
// visits.
#pragma once

#include "templates/sequence.cuh"
#include "templates/tile_lists/layout.h"

namespace flashjit {

enum class Along { queries, keys };

template <Along along>
struct TileAxis {
  static constexpr bool kKeys = along == Along::keys;
  static constexpr int kTile = kKeys ? config.tile_kv : queries_per_tile(config);
  static constexpr bool kPacked = (kKeys ? kKeyRows : kRows) == Rows::packed;

  __device__ static const int* offsets(const KernelParams& p) { return kKeys ? p.offsets_k : p.offsets_q; }
  __device__ static int length(const Sequence& seq) { return kKeys ? seq.k_len : seq.q_len; }
  // Returns how many tiles the longest sequence has.
  __device__ static int most_tiles(const KernelParams& p) { return ((kKeys ? p.k_len : p.q_len) + kTile - 1) / kTile; }

  // Tiles of all sequences have numbers.
  __device__ static int number_of(const KernelParams& p, int b, int tile) {
    return (kPacked ? first_tile_of(offsets(p), b, kTile) : b * most_tiles(p)) + tile;
  }
  __device__ static NumberedTile tile_of(const KernelParams& p, int number) {
    if constexpr (kPacked) return numbered_tile(offsets(p), p.batch, kTile, number);
    return {number / most_tiles(p), number % most_tiles(p)};
  }
};

// The number of a value that is read along an axis, as a type.
template <Along along, int i>
struct TileValue {};

// A mask of which nothing is known. tile_pairs.gen.cuh derives TilePairs from this.
struct AnyPairs {
  // They count the values that are read along queries or keys, and the conditions that are evaluated for all pairs of
  // positions.
  static constexpr int kQueryValues = 0, kKeyValues = 0, kConditions = 0;
  template <class Value>
  __device__ static Int64 value(Value, const KernelParams&, const Sequence&, Int64) {
    return 0;
  }
  // Returns how many queries, from the first of a tile on, have the same answers.
  template <class Condition>
  static constexpr int step(Condition) {
    return 1;
  }
  template <class Condition>
  __device__ static bool condition(Condition, const KernelParams&, const Sequence&, Int64, Int64, Int64, Int64) {
    return true;
  }
};

constexpr Along other(Along along) { return along == Along::keys ? Along::queries : Along::keys; }

// Returns the step from one list to the next: lists of the heads of a tile come first, then those of the next tile.
template <Along along>
__device__ inline int list_stride(const KernelParams& params) {
  return kListCounts + TileAxis<along>::most_tiles(params);
}

// Returns the list of a tile. The listed tiles lie along `along`: first the full ones, then the others, each in their
// order.
template <Along along>
__device__ inline int* list_of(const KernelParams& params, const Sequence& seq, int tile) {
  const int number = TileAxis<other(along)>::number_of(params, seq.b, tile);
  const Int64 list = static_cast<Int64>(number) * config.list_heads + (config.list_heads > 1 ? seq.h : 0);
  return params.tile_lists + list * list_stride<along>(params);
}

}  // namespace flashjit
