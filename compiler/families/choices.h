// Helpers that the enumerations and checks of several families use.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/families/family.h"
#include "compiler/spec/spec.h"

namespace flashjit {

constexpr int kMaxStages = 8;
constexpr int kMaxTileKv = 256;  // WGMMA: N of one instruction.

// Checks of schedules return true if they refuse, and give the reason if the caller wants it. Most candidates of a plan
// need no reason, and writing the reasons took a fifth of the time of a plan.
template <class... Arguments>
bool refuse(std::string* why, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (why) *why = fmt::format(text, std::forward<Arguments>(arguments)...);
  return true;
}

template <class T>
std::vector<T> choices(const std::optional<T>& pin, std::initializer_list<T> values) {
  return pin ? std::vector<T>{*pin} : std::vector<T>(values);
}

// Returns the registers that a score adds to any loop if it reads a tensor for every key.
int score_registers(const AttentionSpec& spec);

// Loops that cut the keys of all sequences together need both answers. The first: does a range of keys depend on the
// head? It must not, because the heads of a group share tiles.
bool keys_differ_by_head(const Problem& problem);
// The second: do the keys that a mask leaves depend on more than lengths?
bool ranges_differ(const TileAnalysis& tiles);
// Returns true if the range along the analysed axis, keys or queries, depends on the head.
bool differ_by_head(const TileAnalysis& tiles);

// Loops of warpgroups rely on their registers, and on matrix products that run beside other work. Both are lost with
// these findings.
std::string why_warpgroups_rejected(const CompilerFindings& findings);

// Returns true if lists of tiles (TileSource) pay. They do not where sequences have so few tiles that all are read
// sooner than lists are made.
bool lists_pay(const Problem& problem);
// Returns true if a tile of so many positions along an axis lies inside a block of the mask, so that one read of the
// block decides it.
bool lies_in_block(const Problem& problem, Axis axis, int positions);
// Refuses a schedule with lists of tiles for a mask that has none.
bool refuses_tiles(const Problem& problem, const Schedule& schedule, std::string* why);

}  // namespace flashjit
