#include "compiler/analysis/tile_pairs.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "compiler/analysis/interval_bounds.h"
#include "compiler/analysis/read_axes.h"
#include "compiler/language/expr_rules.h"
#include "templates/tile_lists/layout.h"

namespace flashjit {
namespace {

constexpr std::size_t kMostValues = kMostTileValues;  // Each value takes a pass over its axis.
constexpr std::size_t kMostConditions = 2;            // Each condition takes a pass over all scores.
constexpr std::size_t kMostNodes = 160;  // The nodes of an answer, which is evaluated for each pair of tiles.
constexpr int kMostSteps = 512;          // The steps of the search.
// The pairs of runs of two tiles for which a condition is evaluated one by one.
constexpr std::int64_t kMostRuns = 8;

// Bounds of a condition over all pairs of positions of two tiles.
struct Known {
  Expr some;  // It is false only if the condition holds for no pair.
  Expr all;   // It is true only if the condition holds for each pair.
};

class PairSolver {
 public:
  PairSolver(int tile_q, int tile_kv, std::int64_t most_runs)
      : tile_q_(tile_q), tile_kv_(tile_kv), most_runs_(most_runs) {}
  std::optional<PairAnalysis> analyse(const Expr& mask);

 private:
  Known of(const Expr& e);
  Known comparison(const Expr& e);
  Known asked(const Expr& e);
  Known in_runs(const Expr& e, std::int64_t run_q, std::int64_t run_kv) const;
  Expr bound(const Expr& e, bool upper) { return bounds_.of(e, upper); }
  Expr value_of(const Expr& e, bool upper);
  Expr at_tile(const Expr& e) const;
  Expr tidy(const Expr& e) { return e ? simplifier_.simplify(e) : e; }

  const int tile_q_, tile_kv_;
  const std::int64_t most_runs_;
  const VariableRanges ranges_ = widest_ranges();
  Simplifier simplifier_{ranges_};
  RangeAnalysis facts_{ranges_};
  TileBounds bounds_{[this](const Expr& e, bool upper) { return value_of(e, upper); }, simplifier_, facts_};
  std::vector<TileValue> values_;
  std::vector<TileCondition> conditions_;
  int steps_ = 0;
};

// Replaces the number of a block by that of the tile's first position, which is the same for a tile inside one block.
Expr PairSolver::at_tile(const Expr& e) const {
  if (!changes(e)) return e;
  const auto& args = e->args;
  if (e->op == Op::Div && args[0]->op == Op::Variable && args[1]->op == Op::IntConst) {
    const bool of_query = args[0]->variable == Variable::Q;
    if (args[1]->integer % (of_query ? tile_q_ : tile_kv_) == 0)
      return Expr::variable(of_query ? Variable::QLo : Variable::KLo) / args[1];
  }
  if (args.empty()) return e;
  std::vector<Expr> made;
  for (const Expr& arg : args) made.push_back(at_tile(arg));
  if (e->op == Op::Load) return Expr::load(e->param, std::move(made));
  Result<Expr> whole = Expr::make(e->op, std::move(made));
  return whole ? *whole : e;
}

// Returns the scalar for the least or the most of a value that is read along one axis; empty for anything else.
Expr PairSolver::value_of(const Expr& e, bool upper) {
  if (e->type != Type::Int || !is_read_along_one(e)) return {};
  const Axis axis = uses(e, Variable::K) ? Axis::Keys : Axis::Queries;
  for (const TileValue& known : values_) {
    if (same(known.value, e)) return Expr::scalar(upper ? known.most : known.least);
  }
  if (values_.size() == kMostValues) return {};
  const IntInterval range = facts_.of(e), narrow = range_of(Dtype::I32);
  const Dtype dtype = range.lo >= narrow.lo && range.hi <= narrow.hi ? Dtype::I32 : Dtype::I64;
  // No parameter of a spec has such a name.
  const std::string name = std::to_string(values_.size());
  values_.push_back({axis, e, {name + ".least", dtype, 0}, {name + ".most", dtype, 0}});
  return Expr::scalar(upper ? values_.back().most : values_.back().least);
}

// A condition with one answer for so many queries and keys is evaluated once in each such run of both. A run behind the
// ends of a tile is the last one before them.
Known PairSolver::in_runs(const Expr& e, std::int64_t run_q, std::int64_t run_kv) const {
  const auto begin = [](Variable lo, Variable hi, std::int64_t at) {
    return at == 0 ? Expr::variable(lo) : min(Expr::variable(lo) + Expr::integer(at), Expr::variable(hi));
  };
  Known known = {Expr::boolean(false), Expr::boolean(true)};
  for (std::int64_t q = 0; q < tile_q_; q += run_q) {
    for (std::int64_t k = 0; k < tile_kv_; k += run_kv) {
      const Expr holds =
          at_positions(e, begin(Variable::QLo, Variable::QHi, q), begin(Variable::KLo, Variable::KHi, k));
      known = {known.some | holds, known.all & holds};
    }
  }
  return known;
}

// Such a condition is unknown until it is evaluated for each pair of positions. One that does not read at pairs stays
// unknown.
Known PairSolver::asked(const Expr& e) {
  const std::int64_t run_q = std::gcd(equal_run(e, Variable::Q), tile_q_),
                     run_kv = std::gcd(equal_run(e, Variable::K), tile_kv_);
  if (tile_q_ / run_q * (tile_kv_ / run_kv) <= most_runs_) return in_runs(e, run_q, run_kv);
  if (reads_at(e, Variable::Q, Variable::K)) {
    auto known = std::ranges::find_if(conditions_, [&](const TileCondition& c) { return same(c.condition, e); });
    if (known == conditions_.end() && conditions_.size() < kMostConditions) {
      const std::string name = std::to_string(conditions_.size());
      conditions_.push_back(
          {e, {name + ".some", Dtype::I32, 0}, {name + ".all", Dtype::I32, 0}, static_cast<int>(run_q)});
      known = std::prev(conditions_.end());
    }
    if (known != conditions_.end())
      return {Expr::scalar(known->some) > Expr::integer(0), Expr::scalar(known->all) > Expr::integer(0)};
  }
  return {Expr::boolean(true), Expr::boolean(false)};
}

Known PairSolver::comparison(const Expr& e) {
  const Op op = e->op;
  const Expr &a = e->args[0], &b = e->args[1];
  const Expr a_least = bound(a, false), a_most = bound(a, true), b_least = bound(b, false), b_most = bound(b, true);
  if (!a_least || !a_most || !b_least || !b_most) return asked(e);
  if (op == Op::Lt) return {a_least < b_most, a_most < b_least};
  if (op == Op::Le) return {a_least <= b_most, a_most <= b_least};
  const Known equal = {(a_least <= b_most) & (b_least <= a_most), (a_least == b_most) & (b_least == a_most)};
  return op == Op::Eq ? equal : Known{~equal.all, ~equal.some};
}

Known PairSolver::of(const Expr& e) {
  if (++steps_ > kMostSteps) return {Expr::boolean(true), Expr::boolean(false)};
  if (!changes(e)) return {e, e};
  const auto& args = e->args;
  if (is_read_along_one(e)) {  // For each position it is known whether the condition holds.
    const Expr holds = where(e, Expr::integer(1), Expr::integer(0));
    const Expr least = value_of(holds, false), most = value_of(holds, true);
    if (least && most) return {most > Expr::integer(0), least > Expr::integer(0)};
  }
  switch (e->op) {
    case Op::Not: {
      const Known a = of(args[0]);
      return {~a.all, ~a.some};
    }
    case Op::And: {
      const Known a = of(args[0]), b = of(args[1]);
      return {a.some & b.some, a.all & b.all};
    }
    case Op::Or: {
      const Known a = of(args[0]), b = of(args[1]);
      return {a.some | b.some, a.all | b.all};
    }
    case Op::Where: {
      const Known condition = of(args[0]), yes = of(args[1]), no = of(args[2]);
      return {(condition.some & yes.some) | (~condition.all & no.some),
              (yes.all & no.all) | (condition.all & yes.all) | (~condition.some & no.all)};
    }
    case Op::Lt:
    case Op::Le:
    case Op::Eq:
    case Op::Ne: return args[0]->type == Type::Int ? comparison(e) : asked(e);
    default: return asked(e);
  }
}

std::optional<PairAnalysis> PairSolver::analyse(const Expr& mask) {
  if (!mask || !uses(mask, Op::Load)) return std::nullopt;
  const Known known = of(tidy(at_tile(tidy(mask))));
  PairAnalysis pairs = {{}, {}, tidy(known.some), tidy(known.all)};
  const auto fits = [&](const Expr& e) { return e && node_count(e) <= kMostNodes && check_ranges(e, ranges_); };
  if (!fits(pairs.sees) || !fits(pairs.full)) return std::nullopt;
  const auto stands = [&](const Param& a, const Param& b) {
    const auto stands_in = [&](const Expr& e) {
      return std::ranges::any_of(params_of(e), [&](const Param& p) { return p == a || p == b; });
    };
    return stands_in(pairs.sees) || stands_in(pairs.full);
  };
  std::ranges::copy_if(values_, std::back_inserter(pairs.values),
                       [&](const TileValue& value) { return stands(value.least, value.most); });
  std::ranges::copy_if(conditions_, std::back_inserter(pairs.conditions),
                       [&](const TileCondition& condition) { return stands(condition.some, condition.all); });
  // TileAnalysis has everything that follows from the ends of tiles.
  const auto reads = [](const Expr& e) { return reads_at(e, Variable::QLo, Variable::KLo); };
  if (pairs.values.empty() && pairs.conditions.empty() && !reads(pairs.sees) && !reads(pairs.full)) return std::nullopt;
  pairs.by_head = uses(mask, Variable::H) || uses(mask, Variable::Hk);
  return pairs;
}

}  // namespace

std::optional<PairAnalysis> analyse_pairs(const Expr& mask, int tile_q, int tile_kv) {
  // An answer that is put together from many runs may have too many operations. Then the analysis is made without runs.
  auto pairs = PairSolver(tile_q, tile_kv, kMostRuns).analyse(mask);
  return pairs ? pairs : PairSolver(tile_q, tile_kv, 0).analyse(mask);
}

}  // namespace flashjit
