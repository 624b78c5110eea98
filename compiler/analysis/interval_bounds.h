// The values that an expression takes over the positions of a tile, or of a tile of each axis, as an expression over the
// ends.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/language/expr_rules.h"
#include "compiler/analysis/interval.h"

namespace flashjit {

class TileBounds {
 public:
  // Over a tile of this axis, of expressions without positions of the other axis.
  TileBounds(Axis tile, Simplifier& simplifier, RangeAnalysis& facts)
      : tiles_{variables_of(tile)}, simplifier_(simplifier), facts_(facts) {}
  // Over a tile of each axis. Who has found a bound for an expression, such as one that is read, returns it from `found`.
  using Found = std::function<Expr(const Expr& e, bool upper)>;
  TileBounds(Found found, Simplifier& simplifier, RangeAnalysis& facts)
      : tiles_{variables_of(Axis::Queries), variables_of(Axis::Keys)},
        found_(std::move(found)),
        simplifier_(simplifier),
        facts_(facts) {}
  // The largest (upper) or smallest value that `e` takes; empty when unknown.
  Expr of(const Expr& e, bool upper);

 private:
  Expr compute(const Expr& e, bool upper);
  Expr linear(const Linear& terms, bool upper);
  Expr product(const Expr& x, const Expr& y, bool upper);
  Expr extreme(const Node& node, bool upper);
  Expr tidy(const Expr& e) { return e ? simplifier_.simplify(e) : e; }
  bool varies(const Expr& e) const {
    return std::ranges::any_of(tiles_, [&](const AxisVariables& tile) { return uses(e, tile.position); });
  }

  const std::vector<AxisVariables> tiles_;
  const Found found_;
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
