// Bounds of an expression over the positions of a tile, or of a tile of each axis, as expressions over the ends of the
// tiles.
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
  // This bounds expressions without positions of the other axis, over a tile of this axis.
  TileBounds(Axis tile, Simplifier& simplifier, RangeAnalysis& facts)
      : tiles_{variables_of(tile)}, simplifier_(simplifier), facts_(facts) {}
  // This bounds expressions over a tile of each axis. `found` returns bounds that the caller knows, for example of a
  // read.
  using Found = std::function<Expr(const Expr& e, bool upper)>;
  TileBounds(Found found, Simplifier& simplifier, RangeAnalysis& facts)
      : tiles_{variables_of(Axis::Queries), variables_of(Axis::Keys)},
        found_(std::move(found)),
        simplifier_(simplifier),
        facts_(facts) {}
  // Returns the largest (upper) or smallest value that `e` takes; empty: it is unknown.
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
  // Bounds are kept, because some operations need both bounds of each of their arguments.
  struct Known {
    Expr expr;  // It keeps the node alive, because its address must not become another node's.
    std::optional<Expr> bound[2];
  };
  std::unordered_map<const Node*, Known> known_;
};

// Returns the value of a bound over a tile of one position.
Expr of_one_position(const Expr& e, Axis tile);

}  // namespace flashjit
