#include "compiler/program/vocabulary.h"

#include <algorithm>

namespace flashjit {

namespace {

constexpr TileOperation kOperations[] = {
    {Kind::Body, "consume", "void consume()", {}, "All items of the block."},
    {Kind::Body, "produce", "void produce()", {}, "All items of the block."},
    {Kind::Call, "gather_warp", "__syncwarp();"},
    {Kind::Return, "", "return;"},
    {Kind::When, "", "if ({if}) {{", "}}"},
    {Kind::Otherwise, "", "else {{", "}}"},
    {Kind::Let, "shared", "extern __shared__ __align__(1024) char memory[];"},
    {Kind::Let, "shared_memory", "const SharedMemory shared = {{shared_address(memory), memory}};"},
    {Kind::Publish, "", "fence_async_proxy();"},
    {Kind::BeginTurn, "", "begin_turn();"},
    {Kind::EndTurn, "", "end_turn();"},
    {Kind::Fence, "", "begin_products();"},
    {Kind::Keep, "", "pin_registers({to});"},
    {Kind::Commit, "", "commit_products();"},
    {Kind::Wait, "", "wait_products<{pending}>();"},
    {Kind::Fill, "", "clear({to});"},
};

constexpr Condition kConditions[] = {
    {"first_warpgroup", "warpgroup_id() == 0"},
    {"last_warpgroup", "warpgroup_id() == kWarpgroups - 1"},
};

const TileOperation* find(std::span<const TileOperation> operations, const Statement& s) {
  const auto found = std::ranges::find_if(
      operations, [&](const TileOperation& operation) { return operation.kind == s.kind && operation.form == s.form; });
  return found == operations.end() ? nullptr : &*found;
}

std::string_view find(std::span<const Condition> conditions, std::string_view label) {
  const auto found = std::ranges::find(conditions, label, &Condition::label);
  return found == conditions.end() ? std::string_view() : found->text;
}

}  // namespace

std::span<const TileOperation> shared_operations() { return kOperations; }

const TileOperation* find_tile_operation(const Program& program, const Statement& s) {
  const TileOperation* own = program.vocabulary ? find(program.vocabulary->operations, s) : nullptr;
  return own ? own : find(kOperations, s);
}

std::string_view condition(const Program& program, std::string_view label) {
  const std::string_view own = program.vocabulary ? find(program.vocabulary->conditions, label) : std::string_view();
  return own.empty() ? find(kConditions, label) : own;
}

}  // namespace flashjit
