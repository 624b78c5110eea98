// The rules behind simplify(), shared with the interval analysis, which knows more about the variables.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/language/expr.h"
#include "compiler/language/expr_linear.h"
#include "compiler/analysis/interval_ranges.h"

namespace flashjit {

class Simplifier {
 public:
  // Expressions keep their value for variables of any value.
  Simplifier() : in_range_(false), facts_(widest_ranges()) {}
  // Positions count as inside their sequences (interval.h has the ranges), so `k < k_len` is true.
  explicit Simplifier(const VariableRanges& ranges) : in_range_(true), facts_(ranges) {}

  Expr simplify(const Expr& expr);

  // Returns true if `a <= b` is provable without knowing the sizes. Both are ints, and simplified already.
  bool at_most(const Expr& a, const Expr& b) { return at_most(a, b, 0); }

 private:
  Expr intern(const Expr& expr);
  Expr make(Op op, std::vector<Expr> args);
  Expr rewrite(const Node& node, std::vector<Expr> args);
  Expr rewrite_int(Op op, std::vector<Expr> args);
  Expr rewrite_float(Op op, std::vector<Expr> args);
  Expr rewrite_div_mod(Op op, const Expr& a, const Expr& b);
  Expr rewrite_extreme(Op op, const Expr& a, const Expr& b);
  Expr rewrite_comparison(Op op, const Expr& a, const Expr& b);
  Expr rewrite_int_comparison(Op op, const Expr& a, const Expr& b);
  Expr rewrite_logic(Op op, const Expr& a, const Expr& b);
  Expr rewrite_not(const Expr& a);
  Expr rewrite_where(const Expr& c, const Expr& a, const Expr& b);
  Expr from(const Linear& linear);
  Expr from(const Linear& linear, const Expr& otherwise);
  void flatten(Op op, const Expr& expr, std::vector<Expr>& out) const;
  bool implies(const Expr& a, const Expr& b);
  bool contradict(const Expr& a, const Expr& b) const;
  // Returns true if no operand can leave 64 bits, so that its arithmetic is that of the integers.
  bool exact(const Expr& a);
  bool exact_operands(const Expr& a);
  bool at_most(const Expr& a, const Expr& b, int depth);
  bool derive_at_most(const Expr& a, const Expr& b, int depth);

  // An answer about a <= b: it holds, or a search that began at this depth did not prove it.
  struct Order {
    bool holds = false;
    int depth = 0;
  };

  bool in_range_;
  RangeAnalysis facts_;
  std::unordered_map<const Node*, Expr> done_;
  std::unordered_multimap<std::size_t, Expr> interned_;
  std::unordered_map<const Node*, bool> exact_;
  std::map<std::pair<const Node*, const Node*>, Order> orders_;
  int order_steps_ = 0;
  std::vector<Expr> alive_;  // It keeps the nodes alive that are keys of done_, exact_ and orders_.
};

}  // namespace flashjit
