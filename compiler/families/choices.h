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
constexpr int kMaxTileKv = 256;  // WGMMA: N of one instruction

// Checks of schedules return this: true, and the reason where somebody asks. Nobody does for most candidates of a plan,
// and to put the reasons into words was a fifth of the time that a plan takes.
template <class... Arguments>
bool refuse(std::string* why, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (why) *why = fmt::format(text, std::forward<Arguments>(arguments)...);
  return true;
}

template <class T>
std::vector<T> choices(const std::optional<T>& pin, std::initializer_list<T> values) {
  return pin ? std::vector<T>{*pin} : std::vector<T>(values);
}

// The registers that a score adds to any loop if it reads a tensor for every key.
int score_registers(const AttentionSpec& spec);

// Loops that cut the keys of all sequences together ask two things. Does a range of keys depend on the head? Tiles have the
// heads of a group in common ...
bool keys_differ_by_head(const Problem& problem);
// ... and do the keys that a mask leaves depend on more than lengths?
bool ranges_differ(const TileAnalysis& tiles);
// Does a range of keys, or where they are analysed of queries, depend on the head?
bool differ_by_head(const TileAnalysis& tiles);

// Loops of warpgroups are built on their registers and on matrix products that run beside other work; that is
// lost with these findings.
std::string why_warpgroups_rejected(const CompilerFindings& findings);

// Do lists of tiles (TileSource) pay? Not where sequences have few tiles, all of which are read sooner than lists are made.
bool lists_pay(const Problem& problem);
// Does a tile of so many positions along an axis lie inside of a block of the mask, so that what is read of that decides it?
bool lies_in_block(const Problem& problem, Axis axis, int positions);
// A schedule with lists of tiles for a mask that has none.
bool refuses_tiles(const Problem& problem, const Schedule& schedule, std::string* why);

}  // namespace flashjit
