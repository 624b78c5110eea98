#include "compiler/analysis/interval_bounds.h"

#include <optional>
#include <utility>
#include <vector>

namespace flashjit {

Expr QueryBounds::linear(const Linear& terms, bool upper) {
  Linear sum;
  sum.constant = terms.constant;
  for (const LinearTerm& term : terms.terms) {
    const Expr most = of(term.atom, (term.factor > 0) == upper);
    const auto part = most ? linear_of(most) : std::nullopt;
    const auto next = part ? add(sum, *part, term.factor) : std::nullopt;
    if (!next) return {};
    sum = *next;
  }
  return tidy(to_expr(sum));
}

Expr QueryBounds::product(const Expr& x, const Expr& y, bool upper) {
  if (uses(y, Variable::Q)) {
    if (!uses(x, Variable::Q)) return product(y, x, upper);
    if (facts_.of(x).lo < 0 || facts_.of(y).lo < 0) return {};
    return of(x, upper) * of(y, upper);
  }
  const IntInterval sign = facts_.of(y);
  if (sign.lo >= 0) return of(x, upper) * y;
  if (sign.hi <= 0) return of(x, !upper) * y;
  const Expr a = of(x, false) * y, b = of(x, true) * y;
  return upper ? max(a, b) : min(a, b);
}

Expr QueryBounds::extreme(const Node& node, bool upper) {
  const Expr a = of(node.args[0], upper), b = of(node.args[1], upper);
  // One bound is enough where the other can only improve it.
  if ((node.op == Op::Min) == upper && (!a || !b)) return a ? a : b;
  return node.op == Op::Min ? min(a, b) : max(a, b);
}

Expr QueryBounds::of(const Expr& e, bool upper) {
  if (!uses(e, Variable::Q)) return e;
  const Node& node = *e;
  switch (node.op) {
    case Op::Variable: return Expr::variable(upper ? Variable::QHi : Variable::QLo);
    case Op::Add:
    case Op::Sub:
    case Op::Neg: {
      const auto sum = linear_of(e);
      return sum ? linear(*sum, upper) : Expr();
    }
    case Op::Mul: return tidy(product(node.args[0], node.args[1], upper));
    case Op::Div: return uses(node.args[1], Variable::Q) ? Expr() : tidy(of(node.args[0], upper) / node.args[1]);
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
      if (!uses(node.args[0], Variable::Q)) return tidy(where(node.args[0], a, b));
      return tidy(upper ? max(a, b) : min(a, b));
    }
    default: return {};
  }
}

Expr of_one_query(const Expr& e) {
  if (!uses(e, Variable::QLo) && !uses(e, Variable::QHi)) return e;
  if (e->op == Op::Variable) return Expr::variable(Variable::Q);
  std::vector<Expr> args;
  for (const Expr& arg : e->args) args.push_back(of_one_query(arg));
  Result<Expr> made = Expr::make(e->op, std::move(args));
  return made ? *made : e;
}

}  // namespace flashjit
