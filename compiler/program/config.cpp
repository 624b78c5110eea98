#include "compiler/program/config.h"

#include <algorithm>
#include <cmath>

#include "compiler/analysis/score_inputs.h"
#include "compiler/families/family.h"
#include "compiler/spec/config_words.h"
#include "compiler/spec/flags.h"
#include "templates/dropout.h"

namespace flashjit {

namespace {

// What products are computed from. Halves hold every number of 8 bits, and P has more bits in them than in bf16. A family
// that multiplies 8 bits as they are says so itself. (check_supported has refused what no loop computes.)
Element element_of(Dtype dtype) {
  if (size_of(dtype) == 1) return Element::f16;
  const auto& words = Words<Element>::values;
  const auto at = std::find(words.begin(), words.end(), code_name(dtype));
  return at == words.end() ? Element::f32 : static_cast<Element>(at - words.begin());
}

Narrow narrow_of(Dtype dtype) {
  if (size_of(dtype) > 1) return Narrow::none;
  const auto& words = Words<Narrow>::values;
  return static_cast<Narrow>(std::ranges::find(words, code_name(dtype)) - words.begin());
}

bool masks_anything(const AttentionSpec& spec) {
  return spec.mask && !(spec.mask->op == Op::BoolConst && spec.mask->integer != 0);
}

// Takes constant factors off a product, a quotient or a negation.
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

// Factors far from 1 are left alone: their powers must not leave the range of fp32.
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

// Named masks, and a few of them joined, are shorter.
constexpr std::size_t kShortMask = 48;

KernelConfig problem_config(const AttentionSpec& spec, const TileAnalysis& tiles) {
  KernelConfig c;
  c.element = element_of(spec.dtype);
  c.queries = narrow_of(spec.dtype);
  c.cache = narrow_of(spec.kv_dtype);
  c.results = narrow_of(spec.out_dtype);
  if (is_backward(spec)) {
    c.output_dq = element_of(spec.out_dq);
    c.output_dk = element_of(spec.out_dk);
    c.output_dv = element_of(spec.out_dv);
  } else {
    c.output = element_of(spec.out_dtype);
  }
  c.head_dim_qk = spec.d_qk;
  c.head_dim_v = spec.d_v;
  c.heads_q = spec.heads_q;
  c.heads_kv = spec.heads_kv;
  c.sequences = is_packed(spec) ? Sequences::packed : Sequences::dense;
  c.page_size = spec.page_size;
  c.lse = spec.lse;
  for (const SpecFlag& flag : kSpecFlags) c.*flag.of_kernel = spec.*flag.of_spec;
  c.scale_block = spec.scale_block;
  c.sink_gradient = has_sink_gradient(spec);
  c.gradients = static_cast<int>(params_with_gradients(spec).size());
  c.rope = spec.rope;
  c.rope_dims = spec.rope_dims;
  c.rope_base = spec.rope_base;
  c.dropped = dropped_of(spec.dropout);
  c.scale = static_cast<float>(spec.effective_scale());
  c.has_score = static_cast<bool>(spec.score);
  c.has_mask = masks_anything(spec);
  c.mask_has_holes = c.has_mask && tiles.may_see;
  c.mask_is_long = c.has_mask && !tiles.line_is_range && node_count(spec.mask) > kShortMask;
  c.copy_bytes = spec.align_bytes;
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
      config(problem_config(s, analysis)),
      queries(s.q_len.max) {}

Dtype weights_of(const AttentionSpec& spec, const KernelConfig& config) {
  if (!has_scaled_queries(spec)) return spec.dtype;
  return config.element == Element::f8 ? Dtype::E4M3 : Dtype::F16;
}

KernelConfig config_of(const Problem& problem, const Schedule& s) {
  KernelConfig c = problem.config;
  apply(s, c);
  s.family->configure(problem, c);
  return c;
}

}  // namespace flashjit
