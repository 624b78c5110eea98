#include "compiler/families/choices.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "compiler/analysis/read_axes.h"
#include "compiler/analysis/score_inputs.h"

namespace flashjit {

int score_registers(const AttentionSpec& spec) {
  constexpr int kAddressesAndValues = 60;
  return loads_per_key(spec.score) ? kAddressesAndValues : 0;
}

// Holes may differ by KV head, or by query head if that has no group.
bool keys_differ_by_head(const Problem& problem) {
  const TileAnalysis& tiles = problem.tiles;
  const bool alone = problem.spec.heads_q == problem.spec.heads_kv;
  for (const Expr* expr : {&tiles.begin, &tiles.end, &tiles.full_begin, &tiles.full_end})
    if (*expr && (uses(*expr, Variable::H) || uses(*expr, Variable::Hk))) return true;
  for (const Expr* expr : {&tiles.may_see, &tiles.may_see_in_blocks})
    if (*expr && !alone && uses(*expr, Variable::H)) return true;
  return false;
}

bool differ_by_head(const TileAnalysis& tiles) {
  for (const Expr* expr :
       {&tiles.begin, &tiles.end, &tiles.full_begin, &tiles.full_end, &tiles.may_see, &tiles.may_see_in_blocks}) {
    if (*expr && (uses(*expr, Variable::H) || uses(*expr, Variable::Hk))) return true;
  }
  return false;
}

bool ranges_differ(const TileAnalysis& tiles) {
  const auto differs = [](const Expr& expr) {
    return expr && (uses(expr, Variable::B) ||
                    std::ranges::any_of(params_of(expr), [](const Param& param) { return param.rank > 0; }));
  };
  return differs(tiles.begin) || differs(tiles.end);
}

std::string why_warpgroups_rejected(const CompilerFindings& findings) {
  std::vector<std::string> reasons;
  if (findings.spill_bytes > 0)
    reasons.push_back(fmt::format("it would spill {} bytes of registers to memory", findings.spill_bytes));
  for (const std::string_view reason :
       {findings.serialised, findings.setmaxnreg_ignored, findings.refused_for_registers}) {
    if (!reason.empty()) reasons.emplace_back(reason);
  }
  return fmt::format("{}", fmt::join(reasons, "; "));
}

bool lists_pay(const Problem& problem) {
  constexpr std::int64_t kFewKeys = 1024;
  return problem.lists.any && problem.spec.k_len.max > kFewKeys;
}

bool lies_in_block(const Problem& problem, Axis axis, int positions) {
  const std::int64_t block = block_of_reads(problem.spec.mask, variables_of(axis).position);
  constexpr int kUsualBlock = 64;  // Blocks of other sizes are no multiples of tiles anyway.
  return block % kUsualBlock != 0 || block % positions == 0;
}

bool refuses_tiles(const Problem& problem, const Schedule& s, std::string* why) {
  if (*s.tiles != TileSource::list || problem.lists.any) return false;
  return refuse(
      why,
      "tiles: list is for masks that read tensors at queries or keys, and what this one lets through is known "
      "before; use tiles=range");
}

}  // namespace flashjit
