#include "compiler/analysis/read_axes.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "compiler/analysis/interval_ranges.h"

namespace flashjit {

bool changes(const Expr& e) { return uses(e, Variable::Q) || uses(e, Variable::K); }
bool reads_at(const Expr& e, Variable q, Variable k) {
  if (!uses(e, Op::Load)) return false;
  const auto moves = [&](const Expr& index) { return uses(index, q) || uses(index, k); };
  if (e->op == Op::Load && std::ranges::any_of(e->args, moves)) return true;
  return std::ranges::any_of(e->args, [&](const Expr& arg) { return reads_at(arg, q, k); });
}

bool is_read_along_one(const Expr& e) {
  return uses(e, Variable::Q) != uses(e, Variable::K) && !uses(e, Variable::QLo) && !uses(e, Variable::KLo) &&
         reads_at(e, Variable::Q, Variable::K);
}

namespace {

bool divides(const Expr& e) { return uses(e, Op::Div) || uses(e, Op::Mod); }
// Returns true if one position alone gives the value, by a read or by a division. Sums and comparisons cost no more
// than a kept value, so they do not count.
bool is_found_along_one(const Expr& e) {
  const bool positions = !uses(e, Variable::QLo) && !uses(e, Variable::KLo);
  return is_read_along_one(e) ||
         (uses(e, Variable::Q) != uses(e, Variable::K) && positions && !uses(e, Op::Load) && divides(e));
}

// The most kept values of an axis. Each takes a register, and at keys four.
constexpr std::ptrdiff_t kMostReads = 2;

struct Separator {
  SeparatedMask& mask;
  RangeAnalysis facts{widest_ranges()};

  Expr scalar_of(const Expr& value) {
    const Axis axis = uses(value, Variable::K) ? Axis::Keys : Axis::Queries;
    for (const SeparatedMask::Value& known : mask.values)
      if (same(known.value, value)) return Expr::scalar(known.scalar);
    if (std::ranges::count(mask.values, axis, &SeparatedMask::Value::axis) == kMostReads) return value;
    const IntInterval range = facts.of(value), narrow = range_of(Dtype::I32);
    const Dtype dtype = range.lo >= narrow.lo && range.hi <= narrow.hi ? Dtype::I32 : Dtype::I64;
    // No parameter of a spec has such a name.
    mask.values.push_back({axis, value, {std::to_string(mask.values.size()) + ".read", dtype, 0}});
    return Expr::scalar(mask.values.back().scalar);
  }

  Expr without_reads(const Expr& e) {
    if (is_found_along_one(e) && e->type == Type::Int) return scalar_of(e);
    if (is_found_along_one(e) && e->type == Type::Bool)
      return scalar_of(where(e, Expr::integer(1), Expr::integer(0))) > Expr::integer(0);
    if (e->args.empty()) return e;
    std::vector<Expr> made;
    for (const Expr& arg : e->args) made.push_back(without_reads(arg));
    if (e->op == Op::Load) return Expr::load(e->param, std::move(made));
    Result<Expr> whole = Expr::make(e->op, std::move(made));
    return whole ? *whole : e;
  }
};

}  // namespace

bool reads_along_one(const Expr& mask) {
  if (uses(mask, Op::Load)) return true;
  if (mask->args.empty()) return false;
  return uses(mask, Variable::Q) != uses(mask, Variable::K) || std::ranges::any_of(mask->args, reads_along_one);
}

std::int64_t block_of_reads(const Expr& mask, Variable variable) {
  std::int64_t block = 0;
  const std::function<void(const Expr&, bool)> visit = [&](const Expr& e, bool in_load) {
    if (in_load && e->op == Op::Div && e->args[1]->op == Op::IntConst && e->args[0]->op == Op::Variable &&
        e->args[0]->variable == variable)
      block = std::gcd(block, e->args[1]->integer);
    for (const Expr& arg : e->args) visit(arg, in_load || e->op == Op::Load);
  };
  if (mask) visit(mask, false);
  return block;
}

std::int64_t equal_run(const Expr& e, Variable variable) {
  if (!uses(e, variable)) return 0;
  if (e->op == Op::Div && e->args[0]->op == Op::Variable && e->args[1]->op == Op::IntConst) return e->args[1]->integer;
  if (e->op == Op::Variable) return 1;
  std::int64_t run = 0;
  for (const Expr& arg : e->args) run = std::gcd(run, equal_run(arg, variable));
  return run;
}

Expr at_positions(const Expr& e, const Expr& q, const Expr& k) {
  if (!changes(e)) return e;
  if (e->op == Op::Variable) return e->variable == Variable::Q ? q : k;
  std::vector<Expr> made;
  for (const Expr& arg : e->args) made.push_back(at_positions(arg, q, k));
  if (e->op == Op::Load) return Expr::load(e->param, std::move(made));
  Result<Expr> whole = Expr::make(e->op, std::move(made));
  return whole ? *whole : Expr();
}

namespace {

void add_conditions(const Expr& e, std::vector<Expr>& conditions) {
  if (e->op != Op::And) return conditions.push_back(e);
  for (const Expr& arg : e->args) add_conditions(arg, conditions);
}
Expr all_of(const std::vector<Expr>& conditions) {
  Expr all;
  for (const Expr& condition : conditions) all = all ? (all & condition) : condition;
  return all;
}

}  // namespace

std::optional<ReadsAndRange> reads_and_range(const SeparatedMask& mask, Axis along) {
  std::vector<Expr> conditions, by_reads, by_range;
  add_conditions(mask.visible, conditions);
  for (const Expr& condition : conditions) {
    const std::vector<Param> params = params_of(condition);
    const bool reads = std::ranges::any_of(mask.values, [&](const SeparatedMask::Value& value) {
      return std::ranges::find(params, value.scalar) != params.end();
    });
    (reads ? by_reads : by_range).push_back(condition);
  }
  // Rows whose values come from positions are all different, so conditions on them tell nothing.
  const auto is_read = [](const SeparatedMask::Value& value) { return uses(value.value, Op::Load); };
  if (!std::ranges::all_of(mask.values, is_read)) return {};
  const auto depends = [](const Expr& e) { return changes(e) || uses(e, Variable::H) || uses(e, Variable::Hk); };
  if (by_reads.empty() || std::ranges::any_of(by_reads, depends) || uses(mask.visible, Op::Load)) return {};
  ReadsAndRange split = {all_of(by_reads), analyse_tiles(all_of(by_range), along)};
  if (!split.range.line_is_range) return {};
  return split;
}

SeparatedMask separate_reads(const Expr& mask) {
  SeparatedMask separated;
  separated.visible = Separator{separated}.without_reads(simplify(mask));
  return separated;
}

}  // namespace flashjit
