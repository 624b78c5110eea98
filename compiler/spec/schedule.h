// A Schedule holds the free choices. A set field is a pin; a plan's schedule has every field of its family set, and no
// other.
// Its text form is one line: "tile_q=128,tile_kv=64,warps=4,stages=2,q_in=registers"
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

// A row of compiler/families. Families are equal if their rows are the same object.
struct FamilyRow;
using Family = const FamilyRow*;

struct Schedule {
  Family family = nullptr;
  std::optional<int> tile_q;   // Rows of a block: queries, or with head_tiles=grouped (query, head) pairs.
  std::optional<int> tile_kv;  // Keys of a step of the loop.
  // The next fields are of sync.
  std::optional<int> warps;          // Warps that compute.
  std::optional<QueryStorage> q_in;  // The storage of Q during the loop.
  std::optional<int> blocks_per_sm;  // The register budget allows so many blocks of an SM.
  std::optional<int> unroll_d;       // So many k-steps of QK are unrolled, which bounds code size and compile time.
  // The next fields are of sync and hopper.
  std::optional<int> stages;       // K/V tiles in flight (sync: with 1, K and V alternate).
  std::optional<TileOrder> order;  // The order in which query tiles start.
  // The next fields are of hopper.
  std::optional<int> warpgroups;       // Warpgroups that compute, 64 rows each; a further one copies.
  std::optional<int> q_stages;         // Q tiles in flight.
  std::optional<Overlap> overlap;      // qk_pv: Q K^T of the next tile is issued before P V of this one.
  std::optional<Exclusive> exclusive;  // The work that only one warpgroup at a time does.
  // The number subtracted in the exponent: the maximum up to this tile, or the maximum of the first tile.
  std::optional<Reference> reference;
  std::optional<RowSum> row_sum;  // matrix: a column of ones beside V sums the rows of P.
  std::optional<GridKind> grid;  // A block for each query tile, or one for each SM that takes one tile after the other.
  std::optional<HeadTiles> head_tiles;  // grouped: the query heads of one KV head share a tile.
  std::optional<Transpose> transpose;   // V of 8 bits is transposed by warps of the loop, or by a launch before it.
  std::optional<Keys> keys;             // parts: where query tiles are few, several blocks share the keys of each.
  std::optional<TileSource> tiles;      // list: a launch before the loop finds the tiles to visit and to mask.
  // The next field is of backward.
  std::optional<DqSums> dq;  // atomics, ordered: the launch of dK and dV adds dQ up in memory.
  // The next field is of decode.
  std::optional<Copies> copies;  // boxes: TMA fills the rings of the warps.
  bool operator==(const Schedule&) const = default;
};

Result<Schedule> parse_schedule(std::string_view text);
std::string print(const Schedule& schedule);

// Copies a field that is set into the configuration of a kernel.
template <class T>
void take(const std::optional<T>& field, T& of_config) {
  if (field) of_config = *field;
}

std::string_view name(Family family);
// null: there is no family of this name.
Family find_family(std::string_view name);

// Returns the fields that schedules of `family` have besides `family` itself, as "tile_q, tile_kv, ...".
std::string fields_of(Family family);
// Returns the first set field that schedules of `family` do not have; empty: there is none.
std::string_view foreign_field(const Schedule& schedule, Family family);
// Returns the first field of schedules of `family` that is not set; empty: the schedule is complete.
std::string_view missing_field(const Schedule& schedule, Family family);
// Returns an error about the first number outside the range of its field; empty: there is none.
std::string outside_range(const Schedule& schedule);
// Returns true if none of the three functions above finds anything. It is fast, because every candidate is checked.
bool is_complete(const Schedule& schedule, Family family);

}  // namespace flashjit
