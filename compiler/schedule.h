// Schedule: the free choices. A set field is a pin; a plan's schedule has every field of its family set.
// Text form, one line: "tile_q=128,tile_kv=64,warps=4,stages=2,q_in=registers"
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

enum class Family { Sync, Host };
enum class QueryPlace { Shared, Registers };
enum class TileOrder { Natural, LongestFirst };

struct Schedule {
  std::optional<Family> family;       // sync | host
  std::optional<int> tile_q;          // query rows per block
  std::optional<int> tile_kv;         // keys per step of the loop
  std::optional<int> warps;           // sync: warps that compute
  std::optional<int> stages;          // sync: K/V tiles in flight (1: K and V alternate)
  std::optional<QueryPlace> q_in;     // sync: where Q lives during the loop: shared | registers
  std::optional<int> blocks_per_sm;   // sync: what the register budget must allow
  std::optional<TileOrder> order;     // sync: natural | longest_first
  std::optional<int> unroll_d;        // sync: k-steps of QK that are unrolled; bounds code size and compile time
  bool operator==(const Schedule&) const = default;
};

Result<Schedule> parse_schedule(std::string_view text);
std::string print(const Schedule& schedule);

std::string_view name(Family family);

}  // namespace flashjit
