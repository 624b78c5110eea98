// Int expressions as sums of constant multiples of other expressions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/expr.h"

namespace flashjit {

struct LinearTerm {
  Expr atom;  // anything but a sum, a difference, a negation or a product with a constant
  std::int64_t factor = 0;
};

struct Linear {
  std::vector<LinearTerm> terms;  // in order of first appearance, no two the same, no factor 0
  std::int64_t constant = 0;

  bool constant_only() const { return terms.empty(); }
};

// Nothing when a factor or the constant would leave int64.
std::optional<Linear> linear_of(const Expr& expr);
// a + factor * b.
std::optional<Linear> add(const Linear& a, const Linear& b, std::int64_t factor);

// Positive terms first, then negative ones, the constant last: "q + k_len - q_len + 1".
Expr to_expr(const Linear& linear);

}  // namespace flashjit
