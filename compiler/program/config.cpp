#include "compiler/program/config.h"

#include <algorithm>
#include <cmath>

#include "compiler/analysis/score_inputs.h"
#include "compiler/analysis/tile_pairs.h"
#include "compiler/families/family.h"
#include "compiler/program/config_fields.h"
#include "compiler/spec/fields/select.h"

namespace flashjit {

namespace {

// Removes constant factors from a product, a quotient or a negation.
Expr without_factors(Expr expr, double& factor) {
  while (true) {
    const auto constant = [&](std::size_t i) { return expr->args[i]->op == Op::FloatConst; };
    if (expr->op == Op::Neg) {
      factor = -factor;
    } else if (expr->op == Op::Mul && constant(0)) {
      factor *= expr->args[0]->real;
    } else if ((expr->op == Op::Mul || expr->op == Op::Div) && constant(1)) {
      factor = expr->op == Op::Mul ? factor * expr->args[1]->real : factor / expr->args[1]->real;
    } else {
      return expr;
    }
    expr = expr->args[expr->op == Op::Mul && constant(0) ? 1 : 0];
  }
}

// Factors far from 1 stay where they are, because their powers must not leave the range of fp32.
void set_cap(const AttentionSpec& spec, ScoreFacts& facts) {
  const auto moderate = [](double factor) { return std::fabs(factor) > 0x1p-20 && std::fabs(factor) < 0x1p20; };
  double cap = 1, factor = spec.effective_scale();
  const Expr tanh = without_factors(simplify(spec.score), cap);
  if (tanh->op != Op::Tanh || !moderate(cap)) return;
  const Expr argument = without_factors(tanh->args[0], factor);
  if (argument->op != Op::Variable || argument->variable != Variable::S || !moderate(factor) || cap * factor < 0)
    return;
  facts.cap = static_cast<float>(std::fabs(cap));
  facts.factor = static_cast<float>(std::fabs(factor));
}

ScoreFacts facts_of(const AttentionSpec& spec) {
  ScoreFacts facts;
  if (!spec.score) return facts;
  facts.has_tanh = uses(spec.score, Op::Tanh);
  facts.adds = only_adds(simplify(spec.score));
  facts.loads = loads_per_key(spec.score);
  set_cap(spec, facts);
  return facts;
}

// The tile in positions. Only masks of very many operations have lists or not depending on it.
constexpr int kUsualTile = 64;

ListFacts lists_of(const Expr& mask) {
  const auto pairs = analyse_pairs(mask, kUsualTile, kUsualTile);
  return {pairs.has_value(), pairs && pairs->by_head};
}

// Named masks, and a few of them joined, are shorter.
constexpr std::size_t kShortMask = 48;

KernelConfig problem_config(const AttentionSpec& spec, const TileAnalysis& tiles) {
  KernelConfig c;
  for (const ConfigField& field : problem_fields()) {
    if (field.set) field.set(c, spec);
  }
  c.mask_has_holes = c.has_mask && (tiles.may_see || tiles.may_see_in_blocks || reads_pages(spec));
  c.mask_is_long = c.has_mask && !tiles.line_is_range && node_count(spec.mask) > kShortMask;
  return c;
}

}  // namespace

Problem::Problem(const AttentionSpec& s, const Target& t, const TileAnalysis& analysis)
    : spec(s),
      target(t),
      tiles(analysis),
      query_tiles(is_backward(s) ? std::make_shared<const TileAnalysis>(analyse_tiles(s.mask, Axis::Queries))
                                 : nullptr),
      score(facts_of(s)),
      lists(s.places ? ListFacts{} : lists_of(s.mask)),  // With places the tiles are those of the call's rows.
      config(problem_config(s, analysis)),
      queries(selects(s) ? std::max(merged_queries(s), 1) : s.q_len.max) {}

Dtype weights_of(const AttentionSpec& spec, const KernelConfig& config) {
  if (!has_scaled_queries(spec)) return spec.dtype;
  return config.element == Element::f8 ? Dtype::E4M3 : Dtype::F16;
}

KernelConfig config_of(const Problem& problem, const Schedule& s) {
  KernelConfig c = problem.config;
  take(s.tile_q, c.tile_q);
  take(s.tile_kv, c.tile_kv);
  take(s.stages, c.stages);
  take(s.order, c.order);
  take(s.reference, c.reference);
  take(s.head_tiles, c.head_tiles);
  if (s.tiles == TileSource::list) {
    c.list_heads = problem.lists.by_head ? c.heads_q : 1;
    c.mask_has_holes = false;  // Every tile in a list is visited.
  }
  s.family->configure(problem, s, c);
  return c;
}

}  // namespace flashjit
