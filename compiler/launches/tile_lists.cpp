#include "compiler/launches/tile_lists.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"
#include "templates/tile_lists/layout.h"

namespace flashjit {

namespace {

constexpr std::string_view word_of(Axis axis) { return axis == Axis::Keys ? "keys" : "queries"; }

struct Lists {
  Plan& plan;
  const KernelConfig& c = plan.config;

  int positions(Axis axis) const { return axis == Axis::Keys ? c.tile_kv : queries_per_tile(c); }
  bool is_numbered(Axis axis) const { return axis == Axis::Keys ? has_packed_keys(plan.spec) : is_packed(plan.spec); }
  // Returns the number of tiles of an axis, for all sequences.
  std::vector<Extent> tiles(Axis axis) const {
    const bool keys = axis == Axis::Keys;
    if (is_numbered(axis)) {
      return {{.size = keys ? &CallSizes::k_tokens : &CallSizes::q_tokens,
               .multiple = positions(axis),
               .tiles = true,
               .more = &CallSizes::batch}};
    }
    return {{&CallSizes::batch}, {keys ? &CallSizes::k_len : &CallSizes::q_len, positions(axis), true}};
  }
  GridRule grid(Axis axis) const {
    GridRule rule = {.heads = c.list_heads, .numbered = is_numbered(axis)};
    (axis == Axis::Keys ? rule.keys : rule.queries) = positions(axis);
    return rule;
  }

  int add_buffer(WorkspaceBuffer buffer) const {
    plan.workspace.push_back(std::move(buffer));
    return static_cast<int>(plan.workspace.size()) - 1;
  }
  void add_launch(std::string entry, std::string_view threads_name, int threads, GridRule grid,
                  std::vector<int> buffers, std::string call) const {
    plan.before.push_back({.entry = std::move(entry),
                           .threads = threads,
                           .grid = std::move(grid),
                           .buffers = std::move(buffers),
                           .bounds = threads_name,
                           .call = std::move(call),
                           .file = "templates/tile_lists/lists.cuh"});
  }

  // Adds the launch that finds the bounds of read values in each tile along the lists.
  int add_bounds(Axis along, int values) const {
    const int bytes = values * static_cast<int>(sizeof(ReadBounds)) * c.list_heads;
    const int bounds = add_buffer({"tile_bounds", "flashjit::ReadBounds", bytes, tiles(along)});
    add_launch("flashjit_tile_bounds", "flashjit::kBoundsThreads", kBoundsThreads, grid(along), {bounds},
               fmt::format("write_tile_bounds<flashjit::Along::{}>(params, tile_bounds)", word_of(along)));
    return bounds;
  }
  // Adds the launch that answers the conditions which are evaluated for all pairs of positions.
  int add_answers(int conditions) const {
    const std::vector<Extent> pairs = {{&CallSizes::batch},
                                       {&CallSizes::q_len, positions(Axis::Queries), true},
                                       {&CallSizes::k_len, positions(Axis::Keys), true}};
    const int answers = add_buffer({"pair_answers", "unsigned char", std::int64_t{conditions} * c.list_heads, pairs});
    const GridRule rule = {.queries = positions(Axis::Queries), .keys = positions(Axis::Keys), .heads = c.list_heads};
    add_launch("flashjit_pair_answers", "flashjit::kAnswerThreads", kAnswerThreads, rule, {answers},
               "write_answers(params, pair_answers)");
    return answers;
  }
};

}  // namespace

PairAnalysis pairs_of(const Plan& plan) {
  const KernelConfig& c = plan.config;
  return analyse_pairs(plan.spec.mask, queries_per_tile(c), c.tile_kv)
      .value_or(PairAnalysis{{}, {}, Expr::boolean(true), Expr::boolean(false)});
}

void add_tile_lists(Plan& plan, Axis along) {
  if (plan.config.list_heads == 0) return;
  const Lists lists = {plan};
  const PairAnalysis pairs = pairs_of(plan);
  const auto values = std::ranges::count(pairs.values, along, &TileValue::axis);
  std::vector<Extent> extents = lists.tiles(other(along));
  const int positions = lists.positions(along);
  extents.push_back(
      {.size = along == Axis::Keys ? &CallSizes::k_len : &CallSizes::q_len,
       .count = [positions](std::int64_t size) { return (size + positions - 1) / positions + kListCounts; }});
  plan.tile_lists = lists.add_buffer({"tile_lists", "int", std::int64_t{plan.config.list_heads} * 4, extents});
  std::vector<int> buffers;
  std::string call = fmt::format("write_tile_lists<flashjit::Along::{}>(params)", word_of(along));
  if (values > 0) {
    buffers.push_back(lists.add_bounds(along, static_cast<int>(values)));
    add_argument(call, "tile_bounds", 1);
  }
  if (!pairs.conditions.empty()) {
    buffers.push_back(lists.add_answers(static_cast<int>(pairs.conditions.size())));
    add_argument(call, "pair_answers", 2);
  }
  // Without this bound ptxas gives a thread 32 registers, and spills.
  lists.add_launch("flashjit_tile_lists", "flashjit::kListThreads, 8", kListThreads, lists.grid(other(along)),
                   std::move(buffers), std::move(call));
  plan.before.back().smem_bytes = kListBytes;
}

std::string describe_tile_lists(const Plan& plan) {
  if (plan.config.list_heads == 0) return {};
  return fmt::format(
      "  launches before it find which tiles each tile visits{}, and which of them need no mask: lists in the workspace\n",
      plan.config.list_heads > 1 ? " for each head" : "");
}

}  // namespace flashjit
