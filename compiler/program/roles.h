// A program with roles as the statements that each of them executes, one after the other: what a block does with a few
// items. Who runs programs, to verify them or to compute with them, runs these.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "compiler/program/ir.h"
#include "compiler/result.h"

namespace flashjit {

// An item of a block: so many tiles, of which the first that are visited are mixed.
struct RoleItem {
  std::int64_t tiles = 0, mixed = 1;
};

// Facts that are decided when a kernel runs, and that no program says.
struct Scenario {
  std::vector<RoleItem> items;
  std::uint64_t seed = 1;  // of what tiles warpgroups pass, and of conditions that depend on numbers
};

struct Step {
  const Statement* statement = nullptr;
  // The work that it is for: the item, counted from 0, and the tile that its scores are of, and the same of the product of P
  // and V. A tile of -1: none.
  std::int64_t item = 0, tile = -1, item_before = -1, tile_before = -1;
  std::int64_t number = 0;  // of the tile, among those of all items
  bool on_top = false;      // what is so called in the step
  bool held = false;        // a slot that is copied now is full only when who copies says so
};

struct RoleTrace {
  const Statement* role = nullptr;
  int number = 0;  // of those of its kind
  std::vector<Step> steps = {};
  // Consumers: the tiles of each item that this one visits, from the first to behind the last. None: nobody looks at its
  // rows.
  std::vector<std::pair<std::int64_t, std::int64_t>> visited = {};
};

// Producer, transposer if there is one, consumers. Behind the items comes the end, which is announced as one.
Result<std::vector<RoleTrace>> trace_roles(const Program& program, const Scenario& scenario);

// Says how many consumers there are.
std::int64_t consumers_of(const Program& program);

}  // namespace flashjit
