#include "compiler/spec/fields/blocks.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/spec/whole_numbers.h"
#include "templates/block_lists/layout.h"

namespace flashjit {

namespace {

constexpr int kBlockStep = 64;

Result<void> check_size(std::string_view which, int size) {
  if (size >= kBlockStep && size <= kMaxListBlock && size % kBlockStep == 0) return {};
  return invalid(
      fmt::format("blocks: {} of a block is {}, no multiple of {} from {} to {}; use 64, or 128, the fast one", which,
                  size, kBlockStep, kBlockStep, kMaxListBlock));
}

Param block_states_param() { return {.name = std::string(kBlockStates), .dtype = Dtype::U8, .rank = 4}; }

// Returns the number of the lists that a query head has: its own, its KV head's, or those of all heads.
Expr head_of_lists(const AttentionSpec& spec) {
  if (spec.blocks.heads == 1) return Expr::integer(0);
  return Expr::variable(spec.blocks.heads == spec.heads_q ? Variable::H : Variable::Hk);
}

// Returns where a key is seen: in listed blocks where the mask lets it through, in full blocks everywhere.
Expr in_blocks(const AttentionSpec& spec) {
  const Expr state = Expr::load(block_states_param(), {Expr::variable(Variable::B), head_of_lists(spec),
                                                       Expr::variable(Variable::Q) / Expr::integer(spec.blocks.q),
                                                       Expr::variable(Variable::K) / Expr::integer(spec.blocks.k)});
  if (!spec.mask) return state != Expr::integer(kBlockLeftOut);
  return (state == Expr::integer(kBlockFull)) | ((state == Expr::integer(kBlockListed)) & spec.mask);
}

}  // namespace

std::string print_blocks(const AttentionSpec& spec) {
  const BlockSizes& blocks = spec.blocks;
  if (blocks.heads != spec.heads_q) return fmt::format("{}/{}/{}", blocks.q, blocks.k, blocks.heads);
  return blocks.q == blocks.k ? fmt::format("{}", blocks.q) : fmt::format("{}/{}", blocks.q, blocks.k);
}

Result<void> check_blocks(const AttentionSpec& spec) {
  const BlockSizes& blocks = spec.blocks;
  if (!has_blocks(spec)) return {};
  FLASHJIT_TRY(check_size("the number of queries", blocks.q));
  FLASHJIT_TRY(check_size("the number of keys", blocks.k));
  if (blocks.heads == 1 || blocks.heads == spec.heads_kv || blocks.heads == spec.heads_q) return {};
  return invalid(fmt::format(
      "blocks: lists for {} heads, and there are {} query heads and {} KV heads; use one of the two, or 1, whose "
      "lists count for all",
      blocks.heads, spec.heads_q, spec.heads_kv));
}

Result<void> put_in_blocks(AttentionSpec& spec, std::vector<Param>& params) {
  if (!has_blocks(spec)) return {};
  if (std::ranges::find(params, kBlockStates, &Param::name) != params.end())
    return invalid(fmt::format("params: {} is what blocks= makes of its lists; choose another name", kBlockStates));
  params.push_back(block_states_param());
  const Expr mask = in_blocks(spec);
  if (!mask) return invalid("mask: with blocks= it has too many operations; write a simpler one");
  spec.mask = simplify(mask);
  return {};
}

void take_out_blocks(AttentionSpec& spec) {
  if (!has_blocks(spec) || !spec.mask) return;
  if (std::ranges::count(params_of(spec.mask), kBlockStates, &Param::name) > 0) spec.mask = Expr();
}

}  // namespace flashjit
