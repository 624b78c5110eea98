// If a mask reads tensors, a map has a byte for each pair of tiles, which tells whether the tile of queries has to
// visit the tile of keys. It is made when a call begins (compiler/analysis/tile_pairs.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codegen/host/config.h"
#include "codegen/host/kernel.h"
#include "codegen/host/problem.h"
#include "compiler/analysis/tile_pairs.h"

namespace flashjit::host {

enum TileState : std::uint8_t { kEmptyTile, kMixedTile, kFullTile };

// These are the arguments of a call of flashjit_tile_map, for all pairs of tiles of a head. Generated code reads them
// through offsetof.
struct TileMapCall {
  const void* params;  // They are KernelParams.
  std::int64_t b, h, hk, q_len, k_len;
  std::int64_t* values;  // The least and the most of each value that is read, for each tile of its axis.
  std::uint8_t* tiles;   // The state of each tile of keys, for each tile of queries.
};
using TileMapFunction = void (*)(const TileMapCall*);
inline constexpr char kTileMapName[] = "flashjit_tile_map";

// Returns nothing with places, because tiles are those of the call's rows, and values are read at positions.
inline std::optional<PairAnalysis> pairs_of(const Plan& plan, const HostConfig& config) {
  if (plan.spec.places) return std::nullopt;
  return analyse_pairs(plan.spec.mask, config.tile_q, config.tile_kv);
}

// These are the maps of the query heads that share a KV head.
class TileMaps {
 public:
  TileMaps(const PairAnalysis& pairs, const AttentionSpec& spec, const HostConfig& config, TileMapFunction fill);

  std::int64_t bytes(const Sequence& s) const { return maps_ * (values_bytes(s) + tiles_bytes(s)); }
  // Finds the maps of all pairs of a sequence and a KV head, each in memory from its `maps_at` on.
  template <class Pair>
  void fill(const KernelParams& params, const ParallelFor& parallel, std::span<const Pair> pairs, char* memory) const {
    parallel.each(static_cast<std::int64_t>(pairs.size()) * maps_, [&](std::int64_t item, int) {
      const Pair& pair = pairs[static_cast<std::size_t>(item / maps_)];
      fill(params, pair.b, pair.hk, pair.sequence, item % maps_, memory + pair.maps_at);
    });
  }
  // Returns the states of all tiles of keys, for a tile of queries of a query head.
  const std::uint8_t* row(const Sequence& s, std::int64_t head, std::int64_t tile_q, const char* memory) const;

  // Returns whether some query of the group visits a tile with one of these keys.
  bool visits(const Sequence& s, std::int64_t first, std::int64_t keys, const char* memory) const;

 private:
  void fill(const KernelParams& params, std::int64_t b, std::int64_t hk, const Sequence& s, std::int64_t map,
            char* memory) const;
  std::int64_t tiles_of(Axis axis, const Sequence& s) const {
    return axis == Axis::Keys ? (s.k_len + tile_kv_ - 1) / tile_kv_ : (s.q_len + tile_q_ - 1) / tile_q_;
  }
  std::int64_t values_bytes(const Sequence& s) const;
  std::int64_t tiles_bytes(const Sequence& s) const {
    return round_up(tiles_of(Axis::Queries, s) * tiles_of(Axis::Keys, s), 64);
  }

  std::vector<Axis> axes_;  // The axis of each value.
  std::int64_t maps_, group_, tile_q_, tile_kv_;
  TileMapFunction fill_;
};

// Returns the maps of a kernel, or nothing if it has none.
class Code;
Result<std::optional<TileMaps>> tile_maps(const Plan& plan, const HostConfig& config, const Code& code);

}  // namespace flashjit::host
