// Schedule: the free choices. A set field is a pin; a plan's schedule has every field of its family set, and no other.
// Text form, one line: "tile_q=128,tile_kv=64,warps=4,stages=2,q_in=registers"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/result.h"
#include "templates/kernel_config.h"

namespace flashjit {

// A row of compiler/families; families are the same if their rows are.
struct FamilyRow;
using Family = const FamilyRow*;

struct Schedule {
  Family family = nullptr;
  std::optional<int> tile_q;   // rows per block: queries, or with head_tiles=grouped (query, head) pairs
  std::optional<int> tile_kv;  // keys per step of the loop
  // sync
  std::optional<int> warps;          // that compute
  std::optional<QueryStorage> q_in;  // where Q lives during the loop
  std::optional<int> blocks_per_sm;  // what the register budget must allow
  std::optional<int> unroll_d;       // k-steps of QK that are unrolled; bounds code size and compile time
  // sync and hopper
  std::optional<int> stages;       // K/V tiles in flight (sync: with 1, K and V alternate)
  std::optional<TileOrder> order;  // which query tiles start first
  // hopper
  std::optional<int> warpgroups;       // that compute, 64 rows each; a further one copies
  std::optional<int> q_stages;         // Q tiles in flight
  std::optional<Overlap> overlap;      // qk_pv: Q K^T of the next tile is issued before P V of this one
  std::optional<Exclusive> exclusive;  // what only one warpgroup at a time does
  std::optional<Reference>
      reference;                  // what is subtracted in the exponent: the maximum up to this tile, or of the first
  std::optional<RowSum> row_sum;  // matrix: a column of ones beside V sums the rows of P
  std::optional<GridKind> grid;   // a block per query tile, or one per SM that takes one tile after the other
  std::optional<HeadTiles> head_tiles;  // grouped: the query heads of one KV head share a tile
  std::optional<Transpose> transpose;   // of V of 8 bits: by warps of the loop, or by a launch before it
  std::optional<Keys> keys;             // parts: where query tiles are few, several blocks share the keys of each
  std::optional<TileSource> tiles;  // list: a launch before the loop finds which tiles have to be visited, and masked
  // backward
  std::optional<DqSums> dq;  // atomics, ordered: added up in memory by the launch of dK and dV
  // decode
  std::optional<Copies> copies;  // boxes: TMA fills the rings of the warps
  bool operator==(const Schedule&) const = default;
};

Result<Schedule> parse_schedule(std::string_view text);
std::string print(const Schedule& schedule);

// Takes a field that is set over into the configuration of a kernel.
template <class T>
void take(const std::optional<T>& field, T& of_config) {
  if (field) of_config = *field;
}

std::string_view name(Family family);
// Null: there is none of this name.
Family find_family(std::string_view name);

// The fields that schedules of `family` have besides `family` itself: "tile_q, tile_kv, ...".
std::string fields_of(Family family);
// The first set field that schedules of `family` do not have; empty: none.
std::string_view foreign_field(const Schedule& schedule, Family family);
// The first field of schedules of `family` that is not set; empty: the schedule is complete.
std::string_view missing_field(const Schedule& schedule, Family family);
// Names the first number outside the range that its field may have at all; empty: none.
std::string outside_range(const Schedule& schedule);
// Does none of these three find anything? Asked of every candidate of a plan.
bool is_complete(const Schedule& schedule, Family family);

}  // namespace flashjit
