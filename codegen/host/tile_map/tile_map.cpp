#include "codegen/host/tile_map/tile_map.h"

#include "codegen/host/jit.h"

namespace flashjit::host {

TileMaps::TileMaps(const PairAnalysis& pairs, const AttentionSpec& spec, const HostConfig& config, TileMapFunction fill)
    : group_(spec.heads_q / spec.heads_kv), tile_q_(config.tile_q), tile_kv_(config.tile_kv), fill_(fill) {
  for (const TileValue& value : pairs.values) axes_.push_back(value.axis);
  maps_ = pairs.by_head ? group_ : 1;
}

std::int64_t TileMaps::values_bytes(const Sequence& s) const {
  std::int64_t bytes = 0;
  for (const Axis axis : axes_) bytes += tiles_of(axis, s) * 2 * std::int64_t{sizeof(std::int64_t)};
  return round_up(bytes, 64);
}

void TileMaps::fill(const KernelParams& params, std::int64_t b, std::int64_t hk, const Sequence& s, std::int64_t map,
                    char* memory) const {
  if (s.q_len == 0 || s.k_len == 0) return;  // Nothing is read then, because tensors may be empty as well.
  char* const own = memory + map * (values_bytes(s) + tiles_bytes(s));
  const TileMapCall call = {&params,
                            b,
                            hk * group_ + map,
                            hk,
                            s.q_len,
                            s.k_len,
                            reinterpret_cast<std::int64_t*>(own),
                            reinterpret_cast<std::uint8_t*>(own + values_bytes(s))};
  fill_(&call);
}

const std::uint8_t* TileMaps::row(const Sequence& s, std::int64_t head, std::int64_t tile_q, const char* memory) const {
  const std::int64_t map = head % maps_;
  return reinterpret_cast<const std::uint8_t*>(memory) + map * (values_bytes(s) + tiles_bytes(s)) + values_bytes(s) +
         tile_q * tiles_of(Axis::Keys, s);
}

bool TileMaps::visits(const Sequence& s, std::int64_t first, std::int64_t keys, const char* memory) const {
  for (std::int64_t map = 0; map < maps_; ++map)
    for (std::int64_t tile_q = 0; tile_q < tiles_of(Axis::Queries, s); ++tile_q) {
      const std::uint8_t* states = row(s, map, tile_q, memory);
      for (std::int64_t tile = first / tile_kv_; tile <= (first + keys - 1) / tile_kv_; ++tile)
        if (states[tile] != kEmptyTile) return true;
    }
  return false;
}

Result<std::optional<TileMaps>> tile_maps(const Plan& plan, const HostConfig& config, const Code& code) {
  const std::optional<PairAnalysis> pairs = pairs_of(plan, config);
  if (!pairs) return std::optional<TileMaps>();
  FLASHJIT_ASSIGN(fill, code.find<TileMapFunction>(kTileMapName));
  return std::optional(TileMaps(*pairs, plan.spec, config, fill));
}

}  // namespace flashjit::host
