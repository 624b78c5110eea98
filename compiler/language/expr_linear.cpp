#include "compiler/language/expr_linear.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace flashjit {
namespace {

bool add_term(Linear& linear, const Expr& atom, std::int64_t factor) {
  const auto term =
      std::find_if(linear.terms.begin(), linear.terms.end(), [&](const LinearTerm& t) { return same(t.atom, atom); });
  if (term == linear.terms.end()) {
    if (linear.terms.empty()) linear.terms.reserve(4);  // Most sums have no more terms.
    if (factor != 0) linear.terms.push_back({atom, factor});
    return true;
  }
  if (__builtin_add_overflow(term->factor, factor, &term->factor)) return false;
  if (term->factor == 0) linear.terms.erase(term);
  return true;
}

bool accumulate(Linear& sum, const Expr& expr, std::int64_t factor) {
  const Node& node = *expr;
  const std::int64_t negative = factor == std::numeric_limits<std::int64_t>::min() ? 0 : -factor;
  if ((node.op == Op::Sub || node.op == Op::Neg) && negative == 0) return false;
  switch (node.op) {
    case Op::IntConst: {
      std::int64_t product = 0;
      return !__builtin_mul_overflow(node.integer, factor, &product) &&
             !__builtin_add_overflow(sum.constant, product, &sum.constant);
    }
    case Op::Add: return accumulate(sum, node.args[0], factor) && accumulate(sum, node.args[1], factor);
    case Op::Sub: return accumulate(sum, node.args[0], factor) && accumulate(sum, node.args[1], negative);
    case Op::Neg: return accumulate(sum, node.args[0], negative);
    case Op::Mul:
      for (int i = 0; i < 2; ++i) {
        const Expr& constant = node.args[i];
        if (constant->op != Op::IntConst) continue;
        if (constant->integer == 0) return true;
        std::int64_t product = 0;
        return !__builtin_mul_overflow(constant->integer, factor, &product) &&
               accumulate(sum, node.args[1 - i], product);
      }
      return add_term(sum, expr, factor);
    default: return add_term(sum, expr, factor);
  }
}

}  // namespace

std::optional<Linear> linear_of(const Expr& expr) {
  Linear sum;
  if (!accumulate(sum, expr, 1)) return std::nullopt;
  return sum;
}

std::optional<Linear> add(const Linear& a, const Linear& b, std::int64_t factor) {
  Linear sum = a;
  for (const LinearTerm& term : b.terms) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(term.factor, factor, &product) || !add_term(sum, term.atom, product))
      return std::nullopt;
  }
  std::int64_t product = 0;
  if (__builtin_mul_overflow(b.constant, factor, &product) ||
      __builtin_add_overflow(sum.constant, product, &sum.constant)) {
    return std::nullopt;
  }
  return sum;
}

Expr to_expr(const Linear& linear) {
  return to_expr(linear, [](Op op, std::vector<Expr> args) {
    Result<Expr> made = Expr::make(op, std::move(args));
    return made ? *made : Expr();
  });
}

}  // namespace flashjit
