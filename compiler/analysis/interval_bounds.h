// The values that an expression takes over the positions of a tile, as an expression over its ends.
#pragma once

#include <optional>
#include <unordered_map>

#include "compiler/language/expr_rules.h"
#include "compiler/analysis/interval.h"

namespace flashjit {

class TileBounds {
 public:
  TileBounds(Axis tile, Simplifier& simplifier, RangeAnalysis& facts)
      : tile_(variables_of(tile)), simplifier_(simplifier), facts_(facts) {}
  // The largest (upper) or smallest value that `e`, without positions of the other axis, takes in the tile; empty when
  // unknown.
  Expr of(const Expr& e, bool upper);

 private:
  Expr compute(const Expr& e, bool upper);
  Expr linear(const Linear& terms, bool upper);
  Expr product(const Expr& x, const Expr& y, bool upper);
  Expr extreme(const Node& node, bool upper);
  Expr tidy(const Expr& e) { return e ? simplifier_.simplify(e) : e; }
  bool varies(const Expr& e) const { return uses(e, tile_.position); }

  const AxisVariables tile_;
  Simplifier& simplifier_;
  RangeAnalysis& facts_;
  // Some operations need both bounds of each of their arguments.
  struct Known {
    Expr expr;  // keeps it alive: a node's address must not come back as another node's
    std::optional<Expr> bound[2];
  };
  std::unordered_map<const Node*, Known> known_;
};

// The value of a bound over a tile that is one position.
Expr of_one_position(const Expr& e, Axis tile);

}  // namespace flashjit
