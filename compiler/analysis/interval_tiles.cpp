// Finds the positions of one axis that a mask leaves for a tile of the other: keys for a tile of queries, or queries
// for a tile of keys.
//
// Every sub-condition becomes two ranges of positions: `some` holds every position that is visible with some of the
// tile, and `all` has positions that are visible with all of it. A comparison is solved for the position along the
// axis, and the solution, which depends on the position across, is bounded over the tile. Conjunction intersects both
// ranges. Disjunction takes the hull of the `some` ranges, and one of the two `all` ranges. A condition that is not
// understood gives everything for `some` and nothing for `all`, which is always sound.
#include <limits>
#include <optional>
#include <vector>

#include "compiler/language/expr_rules.h"
#include "compiler/analysis/interval.h"
#include "compiler/analysis/interval_bounds.h"
#include "compiler/analysis/block_probes.h"
#include "compiler/analysis/read_axes.h"

namespace flashjit {
namespace {

Expr number(std::int64_t value) { return Expr::integer(value); }
const Expr kNone;

// Positions begin <= x < end if the guard holds. An empty begin or end is no limit on that side, and an empty guard
// always holds.
struct Range {
  bool never = false;
  Expr guard, begin, end;

  bool everything() const { return !never && !guard && !begin && !end; }
};

struct Region {
  Range some, all;
  // An expression over the ends of a tile along the axis, which is false only for tiles inside `some` that have no
  // visible pair. Empty: there is no such test.
  Expr holes;
};

Region everything() { return {}; }
Region unknown() {
  Region region;
  region.all.never = true;
  return region;
}
Region nothing() {
  Region region;
  region.some.never = region.all.never = true;
  return region;
}

// The most steps of solving. Each abs or min inside another splits a condition in two.
constexpr int kMaxSteps = 512;
// The most operations of one derived bound. A larger one costs more than it saves.
constexpr std::size_t kMaxBound = 96;
// The most operations with shared ones counted at each use, as an evaluation counts them.
constexpr int kMaxWrittenBound = 1024;

class TileSolver {
 public:
  // With `sizes`, tests of holes also have the reads that a mask does once for a block, for such tiles. null: they read
  // nothing.
  TileSolver(Axis along, const TileSizes* sizes) : axis_(along), sizes_(sizes) {}
  TileAnalysis analyse(const Expr& mask);

 private:
  Region region(const Expr& e, bool negated);
  Region comparison(Op op, const Expr& a, const Expr& b, bool negated);
  Region not_positive(const Linear& d);           // Solves d <= 0.
  Region unsolved(const Linear& rest);            // Solves rest <= 0 if the position solved for is not in it.
  Region at_most(const Expr& t, const Expr& e);   // Solves t(x) <= e, where x is the position solved for.
  Region at_least(const Expr& t, const Expr& e);  // Solves t(x) >= e.
  Region guarded(const Expr& condition);
  Region either(const Region& a, const Region& b);
  Region both(const Region& a, const Region& b);
  Region less_equal(const Expr& a, const Expr& b);

  Range hull(const Range& a, const Range& b);
  Range longer(const Range& a, const Range& b);
  Range chosen(const Expr& condition, const Range& yes, const Range& no);
  Range intersection(const Range& a, const Range& b);
  bool complementary(const Range& a, const Range& b);
  bool contiguous(const Range& a, const Range& b);
  Expr touches(const Range& range, bool with_begin, bool with_end);

  Expr tidy(const Expr& e) { return e ? simplifier_.simplify(e) : e; }
  Expr bound(const Expr& e, bool upper) { return bounds_.of(e, upper); }
  // An empty limit or guard would mean that there is none. So an expression too large to build makes the whole analysis
  // fail.
  Expr limit(const Expr& e) {
    failed_ = failed_ || !e;
    return e ? tidy(e) : number(0);
  }
  Expr condition(const Expr& e) {
    failed_ = failed_ || !e;
    return e ? tidy(e) : Expr::boolean(true);
  }
  Expr begin_of(const Range& range) { return range.begin ? range.begin : number(0); }
  Expr end_of(const Range& range) { return range.end ? range.end : Expr::variable(along_.length); }
  bool has_position(const Expr& e) const { return uses(e, along_.position); }
  void set_limits(const Range& range, Expr& begin, Expr& end);

  const Axis axis_;
  const TileSizes* const sizes_;
  const AxisVariables along_ = variables_of(axis_), across_ = variables_of(other(axis_));
  const VariableRanges ranges_ = widest_ranges(axis_);
  Simplifier simplifier_{ranges_};
  RangeAnalysis facts_{ranges_};
  TileBounds bounds_{other(axis_), simplifier_, facts_};
  int steps_ = 0;
  bool failed_ = false;
};

// ---- ranges ----

bool TileSolver::complementary(const Range& a, const Range& b) {
  return a.guard && b.guard && same(condition(~a.guard), b.guard);
}

Range TileSolver::chosen(const Expr& condition, const Range& yes, const Range& no) {
  Range range;
  if (yes.begin || no.begin) range.begin = limit(where(condition, begin_of(yes), begin_of(no)));
  if (yes.end || no.end) range.end = limit(where(condition, end_of(yes), end_of(no)));
  return range;
}

Range TileSolver::intersection(const Range& a, const Range& b) {
  Range range;
  range.never = a.never || b.never;
  range.guard = a.guard && b.guard ? condition(a.guard & b.guard) : a.guard ? a.guard : b.guard;
  range.begin = a.begin && b.begin ? limit(max(a.begin, b.begin)) : a.begin ? a.begin : b.begin;
  range.end = a.end && b.end ? limit(min(a.end, b.end)) : a.end ? a.end : b.end;
  return range;
}

// Returns the smallest range that holds both. A range that turns out empty at run time may widen it, and never narrows
// it.
Range TileSolver::hull(const Range& a, const Range& b) {
  if (a.never || b.never) return a.never ? b : a;
  if (complementary(a, b)) return chosen(a.guard, a, b);
  Range range;
  if (a.begin && b.begin) range.begin = limit(min(a.begin, b.begin));
  if (a.end && b.end) range.end = limit(max(a.end, b.end));
  if (same(a.guard, b.guard)) {
    range.guard = a.guard;
    return range;
  }
  if (!b.guard) return chosen(a.guard, range, b);
  if (!a.guard) return chosen(b.guard, range, a);
  range.guard = condition(a.guard | b.guard);
  return range;
}

// Returns one range whose positions all lie in a or in b.
Range TileSolver::longer(const Range& a, const Range& b) {
  if (a.never || b.never) return a.never ? b : a;
  if (!same(a.guard, b.guard)) {
    if (complementary(a, b)) return chosen(a.guard, a, b);
    Range free_a = a, free_b = b;
    free_a.guard = free_b.guard = kNone;
    if (!b.guard) return chosen(a.guard, longer(free_a, b), b);
    if (!a.guard) return chosen(b.guard, longer(a, free_b), a);
    Range range = chosen(a.guard, free_a, free_b);
    range.guard = condition(a.guard | b.guard);
    return range;
  }
  Range range;
  range.guard = a.guard;
  if (!a.begin && !b.begin) {
    if (a.end && b.end) range.end = limit(max(a.end, b.end));
    return range;
  }
  if (!a.end && !b.end) {
    if (a.begin && b.begin) range.begin = limit(min(a.begin, b.begin));
    return range;
  }
  // A short range of fixed length, such as a few sink tokens, is not worth a question at run time, so the other one is
  // taken.
  constexpr std::int64_t kShort = 64;
  const Expr length_a = limit(end_of(a) - begin_of(a)), length_b = limit(end_of(b) - begin_of(b));
  if (length_a->op == Op::IntConst && length_a->integer <= kShort) return b;
  if (length_b->op == Op::IntConst && length_b->integer <= kShort) return a;
  // Every choice doubles the size of the next one.
  if (node_count(length_a) + node_count(length_b) > kMaxBound / 2)
    return node_count(length_a) <= node_count(length_b) ? a : b;
  range = chosen(condition(length_b <= length_a), a, b);
  range.guard = a.guard;
  return range;
}

bool TileSolver::contiguous(const Range& a, const Range& b) {
  if (a.never || b.never || complementary(a, b)) return true;
  const auto before = [&](const Expr& begin, const Expr& end) {
    return !begin || !end || simplifier_.at_most(begin, end);
  };
  return (!a.begin && !b.begin) || (!a.end && !b.end) || (before(a.begin, b.end) && before(b.begin, a.end));
}

// Returns the condition that a tile along the axis has a position in common with the range.
Expr TileSolver::touches(const Range& range, bool with_begin, bool with_end) {
  Expr test = Expr::boolean(!range.never);
  if (range.guard) test = test & range.guard;
  if (range.begin && with_begin) test = test & (Expr::variable(along_.hi) >= range.begin);
  if (range.end && with_end) test = test & (Expr::variable(along_.lo) < range.end);
  return test;
}

Region TileSolver::both(const Region& a, const Region& b) {
  Region region;
  region.some = intersection(a.some, b.some);
  region.all = intersection(a.all, b.all);
  region.holes = a.holes && b.holes ? tidy(a.holes & b.holes) : a.holes ? a.holes : b.holes;
  return region;
}

Region TileSolver::either(const Region& a, const Region& b) {
  Region region;
  region.some = hull(a.some, b.some);
  region.all = longer(a.all, b.all);
  if ((!a.holes && a.some.everything()) || (!b.holes && b.some.everything())) return region;
  if (!a.holes && !b.holes && contiguous(a.some, b.some)) return region;
  // A tile that starts before the common end also starts before one of the two ends. So if one side is nothing but an
  // end, the other side's end need not be tested again. The begins are alike.
  const auto only_end = [](const Region& r) { return !r.holes && !r.some.never && !r.some.guard && !r.some.begin; };
  const auto only_begin = [](const Region& r) { return !r.holes && !r.some.never && !r.some.guard && !r.some.end; };
  Expr test_a = touches(a.some, !only_begin(b), !only_end(b) || only_end(a));
  Expr test_b = touches(b.some, !only_begin(a) || only_begin(b), !only_end(a));
  if (a.holes) test_a = test_a & a.holes;
  if (b.holes) test_b = test_b & b.holes;
  region.holes = tidy(test_a | test_b);
  if (region.holes && region.holes->op == Op::BoolConst && region.holes->integer) region.holes = kNone;
  return region;
}

// ---- conditions ----

Region TileSolver::guarded(const Expr& condition) {
  if (condition->op == Op::BoolConst) return condition->integer ? everything() : nothing();
  Region region;
  region.some.guard = region.all.guard = condition;
  return region;
}

Region TileSolver::unsolved(const Linear& rest) {
  const Expr value = tidy(to_expr(rest));
  if (!value) return unknown();
  const Expr least = bound(value, false), most = bound(value, true);
  Region region = unknown();
  if (least) region.some = guarded(condition(least <= number(0))).some;
  if (most) region.all = guarded(condition(most <= number(0))).all;
  return region;
}

// Solves a <= b.
Region TileSolver::less_equal(const Expr& a, const Expr& b) {
  if (!a || !b) return unknown();
  const auto x = linear_of(a), y = linear_of(b);
  const auto difference = x && y ? add(*x, *y, -1) : std::nullopt;
  return difference ? not_positive(*difference) : unknown();
}

Region TileSolver::not_positive(const Linear& d) {
  if (++steps_ > kMaxSteps) return unknown();
  Linear rest;
  rest.constant = d.constant;
  const LinearTerm* solved = nullptr;
  for (const LinearTerm& term : d.terms) {
    if (!has_position(term.atom)) {
      rest.terms.push_back(term);
    } else if (solved) {
      return unknown();
    } else {
      solved = &term;
    }
  }
  if (!solved) return unsolved(rest);
  // The condition is factor * t + rest <= 0.
  const bool positive = solved->factor > 0;
  const auto other_side = add(Linear{}, rest, positive ? -1 : 1);
  if (!other_side || solved->factor == std::numeric_limits<std::int64_t>::min()) return unknown();
  Expr side = to_expr(*other_side);
  const std::int64_t factor = positive ? solved->factor : -solved->factor;
  if (factor > 1) side = (positive ? side : side + number(factor - 1)) / number(factor);
  side = tidy(side);
  if (!side) return unknown();
  return positive ? at_most(solved->atom, side) : at_least(solved->atom, side);
}

Region TileSolver::at_most(const Expr& t, const Expr& e) {
  if (!has_position(t)) return less_equal(t, e);
  const Node& node = *t;
  const auto& args = node.args;
  switch (node.op) {
    case Op::Variable: {
      Region region = unknown();
      if (const Expr most = bound(e, true)) region.some.end = limit(most + number(1));
      if (const Expr least = bound(e, false)) {
        region.all.never = false;
        region.all.end = limit(least + number(1));
      }
      return region;
    }
    case Op::Add:
    case Op::Sub:
    case Op::Neg: return less_equal(t, e);
    case Op::Mul:
      for (int i = 0; i < 2; ++i) {
        const Expr& factor = args[i];
        if (factor->op == Op::IntConst) return less_equal(t, e);
        if (!has_position(factor) && facts_.of(factor).lo >= 1) return at_most(args[1 - i], tidy(e / factor));
      }
      return unknown();
    case Op::Div:
      if (has_position(args[1])) return unknown();
      return less_equal(args[0], tidy(args[1] * e + args[1] - number(1)));
    case Op::Min: return either(less_equal(args[0], e), less_equal(args[1], e));
    case Op::Max: return both(less_equal(args[0], e), less_equal(args[1], e));
    case Op::Abs: return both(less_equal(args[0], e), less_equal(tidy(-e), args[0]));
    case Op::Where:
      return either(both(region(args[0], false), less_equal(args[1], e)),
                    both(region(args[0], true), less_equal(args[2], e)));
    default: return unknown();
  }
}

Region TileSolver::at_least(const Expr& t, const Expr& e) {
  if (!has_position(t)) return less_equal(e, t);
  const Node& node = *t;
  const auto& args = node.args;
  switch (node.op) {
    case Op::Variable: {
      Region region = unknown();
      region.some.begin = bound(e, false);
      if (const Expr most = bound(e, true)) {
        region.all.never = false;
        region.all.begin = most;
      }
      return region;
    }
    case Op::Add:
    case Op::Sub:
    case Op::Neg: return less_equal(e, t);
    case Op::Mul:
      for (int i = 0; i < 2; ++i) {
        const Expr& factor = args[i];
        if (factor->op == Op::IntConst) return less_equal(e, t);
        if (has_position(factor) || facts_.of(factor).lo < 1) continue;
        return at_least(args[1 - i], tidy((e + factor - number(1)) / factor));
      }
      return unknown();
    case Op::Div: return has_position(args[1]) ? unknown() : less_equal(tidy(args[1] * e), args[0]);
    case Op::Min: return both(less_equal(e, args[0]), less_equal(e, args[1]));
    case Op::Max: return either(less_equal(e, args[0]), less_equal(e, args[1]));
    case Op::Abs: return either(less_equal(e, args[0]), less_equal(args[0], tidy(-e)));
    case Op::Where:
      return either(both(region(args[0], false), less_equal(e, args[1])),
                    both(region(args[0], true), less_equal(e, args[2])));
    default: return unknown();
  }
}

Region TileSolver::comparison(Op op, const Expr& a, const Expr& b, bool negated) {
  if (negated) {
    switch (op) {
      case Op::Lt: return comparison(Op::Le, b, a, false);
      case Op::Le: return comparison(Op::Lt, b, a, false);
      case Op::Eq: return comparison(Op::Ne, a, b, false);
      default: return comparison(Op::Eq, a, b, false);
    }
  }
  switch (op) {
    case Op::Lt: return less_equal(tidy(a + number(1)), b);
    case Op::Le: return less_equal(a, b);
    case Op::Eq: return both(less_equal(a, b), less_equal(b, a));
    default: {
      // One missing position is no hole worth a test.
      Region region = either(less_equal(tidy(a + number(1)), b), less_equal(tidy(b + number(1)), a));
      region.some = region.some.never ? region.some : everything().some;
      region.holes = kNone;
      return region;
    }
  }
}

Region TileSolver::region(const Expr& e, bool negated) {
  if (++steps_ > kMaxSteps) return unknown();
  const auto& args = e->args;
  // A condition without q and k is the same for the whole tile.
  if (!has_position(e) && !uses(e, across_.position)) return guarded(condition(negated ? ~e : e));
  if (const Expr seen = sizes_ ? seen_in_blocks(negated ? ~e : e, *sizes_) : kNone) {
    Region in_blocks = unknown();
    in_blocks.holes = tidy(seen);
    return in_blocks;
  }
  switch (e->op) {
    case Op::Not: return region(args[0], !negated);
    case Op::And:
    case Op::Or: {
      const Region a = region(args[0], negated), b = region(args[1], negated);
      return (e->op == Op::And) != negated ? both(a, b) : either(a, b);
    }
    case Op::Where:
      return either(both(region(args[0], false), region(args[1], negated)),
                    both(region(args[0], true), region(args[2], negated)));
    case Op::Lt:
    case Op::Le:
    case Op::Eq:
    case Op::Ne: return args[0]->type == Type::Int ? comparison(e->op, args[0], args[1], negated) : unknown();
    default: return unknown();
  }
}

// Sets [begin, end) to the range inside 0..length.
void TileSolver::set_limits(const Range& range, Expr& begin, Expr& end) {
  if (range.never) {
    begin = end = number(0);
    return;
  }
  const Expr zero = number(0), length = Expr::variable(along_.length);
  begin = tidy(max(min(begin_of(range), length), zero));
  end = end_of(range);
  if (range.guard) end = where(range.guard, end, zero);
  end = tidy(max(min(end, length), zero));
}

TileAnalysis TileSolver::analyse(const Expr& mask) {
  Region visible = mask ? region(tidy(mask), false) : everything();
  if (failed_) visible = unknown();
  TileAnalysis tiles;
  tiles.along = axis_;
  set_limits(visible.some, tiles.begin, tiles.end);
  set_limits(visible.all, tiles.full_begin, tiles.full_end);
  // A 64-bit parameter on the other side of a comparison may overflow where the comparison itself does not.
  const auto fits = [&](const Expr& e) {
    return e && node_count(e) <= kMaxBound && e->tree_nodes <= kMaxWrittenBound &&
           static_cast<bool>(check_ranges(e, ranges_));
  };
  if (!fits(tiles.begin)) tiles.begin = number(0);
  if (!fits(tiles.end)) tiles.end = Expr::variable(along_.length);
  if (!fits(tiles.full_begin) || !fits(tiles.full_end)) tiles.full_begin = tiles.full_end = number(0);
  if (fits(visible.holes)) tiles.may_see = visible.holes;
  const auto of_one = [&](const Expr& e) { return tidy(of_one_position(e, other(axis_))); };
  tiles.line_is_range =
      same(of_one(tiles.begin), of_one(tiles.full_begin)) && same(of_one(tiles.end), of_one(tiles.full_end));
  return tiles;
}

}  // namespace

TileAnalysis analyse_tiles(const Expr& mask, Axis along, const TileSizes& sizes) {
  TileAnalysis tiles = TileSolver(along, nullptr).analyse(mask);
  if (!mask || !uses(mask, Op::Load)) return tiles;
  const Expr may_see = TileSolver(along, &sizes).analyse(mask).may_see;
  if (may_see && reads_at(may_see, Variable::QLo, Variable::KLo)) tiles.may_see_in_blocks = may_see;
  return tiles;
}

TileClass classify(const TileAnalysis& analysis, Environment environment, std::int64_t q_lo, std::int64_t q_hi,
                   std::int64_t k_lo, std::int64_t k_hi) {
  const auto set = [&](Variable variable, std::int64_t value) {
    environment.variables[static_cast<int>(variable)] = value;
  };
  set(Variable::QLo, q_lo);
  set(Variable::QHi, q_hi);
  set(Variable::KLo, k_lo);
  set(Variable::KHi, k_hi);
  const auto value = [&](const Expr& e) { return evaluate(e, environment).integer; };
  const bool keys = analysis.along == Axis::Keys;
  const std::int64_t lo = keys ? k_lo : q_lo, hi = keys ? k_hi : q_hi;
  if (hi < value(analysis.begin) || lo >= value(analysis.end) || value(analysis.begin) >= value(analysis.end)) {
    return TileClass::Empty;
  }
  if (analysis.may_see && !value(analysis.may_see)) return TileClass::Empty;
  return lo >= value(analysis.full_begin) && hi < value(analysis.full_end) ? TileClass::Full : TileClass::Mixed;
}

}  // namespace flashjit
