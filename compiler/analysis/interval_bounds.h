// What an expression takes over the queries q_lo..q_hi of a tile, as an expression over these two.
#pragma once

#include "compiler/language/expr_rules.h"
#include "compiler/analysis/interval.h"

namespace flashjit {

class QueryBounds {
 public:
  QueryBounds(Simplifier& simplifier, RangeAnalysis& facts) : simplifier_(simplifier), facts_(facts) {}
  // The largest (upper) or smallest value that `e`, which has no k, takes in the tile; empty when unknown.
  Expr of(const Expr& e, bool upper);

 private:
  Expr linear(const Linear& terms, bool upper);
  Expr product(const Expr& x, const Expr& y, bool upper);
  Expr extreme(const Node& node, bool upper);
  Expr tidy(const Expr& e) { return e ? simplifier_.simplify(e) : e; }

  Simplifier& simplifier_;
  RangeAnalysis& facts_;
};

// What a bound over q_lo..q_hi is for a tile of one query.
Expr of_one_query(const Expr& e);

}  // namespace flashjit
