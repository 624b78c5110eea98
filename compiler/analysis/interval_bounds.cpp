#include "compiler/analysis/interval_bounds.h"

#include <optional>
#include <utility>
#include <vector>

namespace flashjit {

Expr TileBounds::linear(const Linear& terms, bool upper) {
  Linear sum;
  sum.constant = terms.constant;
  for (const LinearTerm& term : terms.terms) {
    const Expr most = of(term.atom, (term.factor > 0) == upper);
    const auto bound = most ? linear_of(most) : std::nullopt;
    const auto next = bound ? add(sum, *bound, term.factor) : std::nullopt;
    if (!next) return {};
    sum = *next;
  }
  return tidy(to_expr(sum));
}

Expr TileBounds::product(const Expr& x, const Expr& y, bool upper) {
  if (varies(y)) {
    if (!varies(x)) return product(y, x, upper);
    if (facts_.of(x).lo < 0 || facts_.of(y).lo < 0) return {};
    return of(x, upper) * of(y, upper);
  }
  const IntInterval sign = facts_.of(y);
  if (sign.lo >= 0) return of(x, upper) * y;
  if (sign.hi <= 0) return of(x, !upper) * y;
  const Expr a = of(x, false) * y, b = of(x, true) * y;
  return upper ? max(a, b) : min(a, b);
}

Expr TileBounds::extreme(const Node& node, bool upper) {
  const Expr a = of(node.args[0], upper), b = of(node.args[1], upper);
  // One bound is enough where the other can only improve it.
  if ((node.op == Op::Min) == upper && (!a || !b)) return a ? a : b;
  return node.op == Op::Min ? min(a, b) : max(a, b);
}

Expr TileBounds::of(const Expr& e, bool upper) {
  if (!varies(e)) return e;
  if (found_) {
    if (const Expr bound = found_(e, upper)) return bound;
  }
  Known& known = known_[e.get()];
  known.expr = e;
  std::optional<Expr>& bound = known.bound[upper];
  if (!bound) bound = compute(e, upper);
  return *bound;
}

Expr TileBounds::compute(const Expr& e, bool upper) {
  const Node& node = *e;
  switch (node.op) {
    case Op::Variable: {
      const auto tile = std::ranges::find(tiles_, node.variable, &AxisVariables::position);
      return Expr::variable(upper ? tile->hi : tile->lo);
    }
    case Op::Add:
    case Op::Sub:
    case Op::Neg: {
      const auto sum = linear_of(e);
      return sum ? linear(*sum, upper) : Expr();
    }
    case Op::Mul: return tidy(product(node.args[0], node.args[1], upper));
    case Op::Div: return varies(node.args[1]) ? Expr() : tidy(of(node.args[0], upper) / node.args[1]);
    case Op::Mod: {
      if (!upper) return Expr::integer(0);
      return tidy(of(node.args[1], true) - Expr::integer(1));
    }
    case Op::Min:
    case Op::Max: return tidy(extreme(node, upper));
    case Op::Abs: {
      const Expr lo = of(node.args[0], false), hi = of(node.args[0], true);
      return tidy(upper ? max(hi, -lo) : max(max(lo, -hi), Expr::integer(0)));
    }
    case Op::Where: {
      const Expr a = of(node.args[1], upper), b = of(node.args[2], upper);
      if (!varies(node.args[0])) return tidy(where(node.args[0], a, b));
      return tidy(upper ? max(a, b) : min(a, b));
    }
    default: return {};
  }
}

Expr of_one_position(const Expr& e, Axis tile) {
  const AxisVariables v = variables_of(tile);
  if (!uses(e, v.lo) && !uses(e, v.hi)) return e;
  if (e->op == Op::Variable) return Expr::variable(v.position);
  std::vector<Expr> args;
  for (const Expr& arg : e->args) args.push_back(of_one_position(arg, tile));
  Result<Expr> made = Expr::make(e->op, std::move(args));
  return made ? *made : e;
}

}  // namespace flashjit
