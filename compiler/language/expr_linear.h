// Int expressions as sums of constant multiples of other expressions.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/language/expr.h"

namespace flashjit {

struct LinearTerm {
  Expr atom;  // It is no sum, difference, negation or product with a constant.
  std::int64_t factor = 0;
};

struct Linear {
  std::vector<LinearTerm> terms;  // Terms are in order of first appearance, no two are the same, and no factor is 0.
  std::int64_t constant = 0;

  bool constant_only() const { return terms.empty(); }
};

// Returns nothing if a factor or the constant would leave int64.
std::optional<Linear> linear_of(const Expr& expr);
// Returns a + factor * b.
std::optional<Linear> add(const Linear& a, const Linear& b, std::int64_t factor);

// Positive terms come first, then negative ones, and the constant last, as in "q + k_len - q_len + 1". `make(op, args)`
// builds a node.
template <class Make>
Expr to_expr(const Linear& linear, const Make& make) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const auto scaled = [&](const Expr& atom, std::int64_t factor) {
    return factor == 1 ? atom : make(Op::Mul, {atom, Expr::integer(factor)});
  };
  Expr sum;
  for (const LinearTerm& term : linear.terms) {
    if (term.factor <= 0) continue;
    const Expr product = scaled(term.atom, term.factor);
    sum = sum ? make(Op::Add, {sum, product}) : product;
  }
  std::int64_t constant = linear.constant;
  if (!sum && (constant > 0 || linear.terms.empty())) {
    sum = Expr::integer(constant);
    constant = 0;
  }
  for (const LinearTerm& term : linear.terms) {
    if (term.factor > 0) continue;
    if (!sum) sum = term.factor == -1 ? make(Op::Neg, {term.atom}) : scaled(term.atom, term.factor);
    else if (term.factor == kLeast) sum = make(Op::Add, {sum, scaled(term.atom, term.factor)});
    else sum = make(Op::Sub, {sum, scaled(term.atom, -term.factor)});
  }
  if (constant > 0 || constant == kLeast) return make(Op::Add, {sum, Expr::integer(constant)});
  return constant < 0 ? make(Op::Sub, {sum, Expr::integer(-constant)}) : sum;
}
Expr to_expr(const Linear& linear);

}  // namespace flashjit
