// A program with roles as the statements that each role executes, one after the other: the work of a block for a few
// items. Code that runs programs, to verify them or to compute with them, runs these statements.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "compiler/program/ir.h"
#include "compiler/result.h"

namespace flashjit {

// An item of a block: its number of tiles, and how many of those visited first are mixed.
struct RoleItem {
  std::int64_t tiles = 0, mixed = 1;
};

// Facts that are decided only when a kernel runs, so that no program has them.
struct Scenario {
  std::vector<RoleItem> items;
  std::uint64_t seed = 1;  // It decides which tiles warpgroups leave out, and conditions that depend on numbers.
};

struct Step {
  const Statement* statement = nullptr;
  // The work of the step: the item, counted from 0, and the tile of its scores, and the item and tile of the product of
  // P and V. A tile of -1 means none.
  std::int64_t item = 0, tile = -1, item_before = -1, tile_before = -1;
  std::int64_t number = 0;  // The tile's number among those of all items.
  bool on_top = false;      // The value of the step's condition with this name.
  bool held = false;        // A slot that is copied now is full only when the copying role announces it.
};

struct RoleTrace {
  const Statement* role = nullptr;
  int number = 0;  // The role's number among those of its kind.
  std::vector<Step> steps = {};
  // Consumers: the tiles of each item that this one visits, from the first to behind the last. An item without tiles
  // has rows that nobody uses.
  std::vector<std::pair<std::int64_t, std::int64_t>> visited = {};
};

// Returns the producer, a transposer if there is one, and the consumers. The end follows the items, and is announced as
// an item is.
Result<std::vector<RoleTrace>> trace_roles(const Program& program, const Scenario& scenario);

// Returns the number of consumers.
std::int64_t consumers_of(const Program& program);

}  // namespace flashjit
