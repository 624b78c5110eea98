#include "compiler/spec/fields/shared_prefix.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/language/expr_rules.h"

namespace flashjit {

namespace {

Expr replaced(const Expr& expr, Variable variable, const Expr& by) {
  if (!uses(expr, variable)) return expr;
  if (expr->op == Op::Variable) return by;
  if (expr->op == Op::Load) {
    std::vector<Expr> index;
    for (const Expr& arg : expr->args) index.push_back(replaced(arg, variable, by));
    return Expr::load(expr->param, std::move(index));
  }
  std::vector<Expr> args;
  for (const Expr& arg : expr->args) args.push_back(replaced(arg, variable, by));
  Result<Expr> made = Expr::make(expr->op, std::move(args));
  return made ? *made : Expr();
}

// Returns true if all queries see every key before the first query. The key is given by its distance from that query,
// so this holds for all lengths.
bool shows_all_before_queries(const AttentionSpec& spec) {
  if (!spec.mask) return true;
  const Expr distance = Expr::variable(Variable::K);
  const Expr key = Expr::variable(Variable::KLen) - Expr::variable(Variable::QLen) - Expr::integer(1) - distance;
  const Expr seen = replaced(spec.mask, Variable::K, key);
  if (!seen) return false;
  const Expr simple = Simplifier(variable_ranges(spec)).simplify(seen);
  return simple->op == Op::BoolConst && simple->integer != 0;
}

// Returns the name of the first variable of the score whose values are a sequence's own; empty: there is none.
std::string_view read_of_sequence(const Expr& score) {
  if (!score) return {};
  for (const Variable variable : {Variable::Q, Variable::B, Variable::QLen, Variable::KLen}) {
    if (uses(score, variable)) return name(variable);
  }
  return {};
}

Result<void> check_params(const AttentionSpec& spec) {
  namespace own = cascade_params;
  for (const Param& param : spec.params) {
    if (std::ranges::find(own::kAll, param.name) == own::kAll.end()) continue;
    return invalid(fmt::format("params: {} is a name that shared_prefix takes; choose another one", param.name));
  }
  const std::size_t of_score = spec.score ? params_of(spec.score).size() : 0;
  if (spec.params.size() + own::kOfOwn <= kMaxParams && of_score + own::kAll.size() <= kMaxParams) return {};
  return invalid(fmt::format(
      "shared_prefix: it takes {} parameters beside those of the mask and {} beside those of the score, of {} "
      "in all; merge some into one tensor",
      own::kOfOwn, own::kAll.size(), kMaxParams));
}

}  // namespace

std::string why_read_by_each(const AttentionSpec& spec) {
  if (is_packed(spec)) return "they have different numbers of queries";
  if (!shows_all_before_queries(spec)) return "the mask may hide some of those before the first query";
  if (const std::string_view read = read_of_sequence(spec.score); !read.empty())
    return fmt::format("the score reads `{}`, of its own for each", read);
  return {};
}

Result<void> check_shared_prefix(const AttentionSpec& spec) {
  if (!is_paged(spec)) return invalid("shared_prefix: sequences share pages; use layout=paged(N), or leave it out");
  if (spec.numerics == Numerics::BatchInvariant) {
    return invalid(
        "shared_prefix: where keys are cut depends on the batch, which numerics=batch_invariant excludes; leave one of "
        "the two out");
  }
  if (!why_read_by_each(spec).empty()) return {};
  if (spec.align_bytes < size_of(Dtype::F32)) {
    return invalid(
        fmt::format("bytes: {} is below {}, which shared_prefix needs; align tensors to it, or leave "
                    "shared_prefix out",
                    spec.align_bytes, size_of(Dtype::F32)));
  }
  return check_params(spec);
}

}  // namespace flashjit
