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
    {Kind::Publish, "barriers", "publish_barriers();"},
    {Kind::Barrier, "block", "__syncthreads();"},
    {Kind::Init, "slots", "for (int i = 0; i < {count}; ++i) {{", "}}"},
    {Kind::Init, "", "init_barrier(shared.{slot}_{barrier}(i), {arrivals});"},
    {Kind::Init, "own", "init_barrier(shared.{slot}_{barrier}(i), {arrivals});"},
    {Kind::Init, "single", "init_barrier(shared.{barrier}(), {arrivals});"},
    {Kind::BeginTurn, "", "begin_turn();"},
    {Kind::EndTurn, "", "end_turn();"},
    {Kind::Fence, "", "begin_products();"},
    {Kind::Keep, "", "pin_registers({to});"},
    {Kind::Commit, "", "commit_products();"},
    {Kind::Wait, "", "wait_products<{pending}>();"},
    {Kind::Fill, "", "clear({to});"},
};

constexpr Condition kConditions[] = {
    {"first_thread", "threadIdx.x == 0"},
    {"first_warpgroup", "warpgroup_id() == 0"},
    {"last_warpgroup", "warpgroup_id() == kWarpgroups - 1"},
};

const TileOperation* find(std::span<const TileOperation> operations, const Statement& s) {
  const auto found = std::ranges::find_if(
      operations, [&](const TileOperation& operation) { return operation.kind == s.kind && operation.form == s.form; });
  return found == operations.end() ? nullptr : &*found;
}

const Condition* find(std::span<const Condition> conditions, std::string_view label) {
  const auto found = std::ranges::find(conditions, label, &Condition::label);
  return found == conditions.end() ? nullptr : &*found;
}

}  // namespace

std::span<const TileOperation> shared_operations() { return kOperations; }

const TileOperation* find_tile_operation(const Program& program, const Statement& s) {
  const TileOperation* own = program.vocabulary ? find(program.vocabulary->operations, s) : nullptr;
  return own ? own : find(kOperations, s);
}

const Condition* find_condition(const Program& program, std::string_view label) {
  const Condition* own = program.vocabulary ? find(program.vocabulary->conditions, label) : nullptr;
  return own ? own : find(kConditions, label);
}

std::string_view condition(const Program& program, std::string_view label) {
  const Condition* found = find_condition(program, label);
  return found ? found->text : std::string_view();
}

}  // namespace flashjit
