#include "compiler/analysis/interval.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "compiler/analysis/interval_ranges.h"

namespace flashjit {
namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLargestTile = 4096;  // the end of the last tile of a loop may lie this far behind the length

IntInterval range_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::I32: return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    case Dtype::U32: return {0, std::numeric_limits<std::uint32_t>::max()};
    case Dtype::U8: return {0, 255};
    default: return {kLeast, kLargest};
  }
}

// Long expressions are cut: the message is one line.
std::string shown(const Expr& expr) {
  std::string text = print(expr);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

// Of a divisor that lies in `range`, and what to write instead: the same quotient where there is one.
std::string why_not_positive(const Expr& divisor, const Node& node, IntInterval range) {
  if (range.lo == 0 && range.hi == 0) return "is 0, and must be positive; use 1 or more";
  if (range.hi <= 0) {
    return fmt::format("is {}, and must be positive; negate {}", range.hi < 0 ? "negative" : "never positive",
                       node.op == Op::Div ? "both sides" : "it");
  }
  return fmt::format("can be {}, and must be positive; write max({}, 1)", range.lo < 0 ? "negative" : "0",
                     shown(divisor));
}

// x <= y - distance.
struct Order {
  Variable x, y;
  std::int64_t distance;
};
// A row's y may be the x of a later row.
constexpr std::array<Order, 7> orders(Axis along) {
  const AxisVariables a = variables_of(along), t = variables_of(other(along));
  return {{{t.lo, t.hi, 0},
           {t.lo, t.length, 1},
           {t.hi, t.length, 1},
           {t.position, t.length, 1},
           {a.position, a.length, 1},
           {a.lo, a.hi, 0},
           {Variable::Hk, Variable::H, 0}}};
}
constexpr std::array<Order, 7> kOrders[] = {orders(Axis::Queries), orders(Axis::Keys)};

LinearTerm* find_variable_term(Linear& linear, Variable variable) {
  for (LinearTerm& term : linear.terms) {
    if (term.atom->op == Op::Variable && term.atom->variable == variable) return &term;
  }
  return nullptr;
}

// Replaces x by y - distance as far as that cancels y: the result is never smaller.
void cancel_upwards(Linear& linear, Axis along) {
  for (const Order& order : kOrders[static_cast<int>(along)]) {
    LinearTerm* x = find_variable_term(linear, order.x);
    LinearTerm* y = find_variable_term(linear, order.y);
    if (!x || !y || x->factor <= 0 || y->factor >= 0 || y->factor == kLeast) continue;
    const std::int64_t factor = std::min(x->factor, -y->factor);
    std::int64_t constant = 0;
    if (__builtin_sub_overflow(linear.constant, factor * order.distance, &constant)) continue;
    linear.constant = constant;
    x->factor -= factor;
    y->factor += factor;
  }
}

// x of n * floor(x / n) with a constant n (then `factor` must be a multiple of it) or any n (then the atom is the
// product).
struct Floored {
  Expr x, n;
  std::int64_t factor = 0;  // of x, once the rounding is forgotten
};
std::optional<Floored> floored(const LinearTerm& term) {
  const Node& atom = *term.atom;
  if (atom.op == Op::Div && atom.args[1]->op == Op::IntConst) {
    const std::int64_t n = atom.args[1]->integer;
    if (n <= 0 || term.factor % n != 0) return std::nullopt;
    return Floored{atom.args[0], atom.args[1], term.factor / n};
  }
  if (atom.op == Op::Mul) {
    for (int i = 0; i < 2; ++i) {
      const Node& quotient = *atom.args[i];
      if (quotient.op == Op::Div && same(quotient.args[1], atom.args[1 - i])) {
        return Floored{quotient.args[0], quotient.args[1], term.factor};
      }
    }
  }
  return std::nullopt;
}

// Forgets the rounding of n * floor(x / n): at most x, and at least x - n + 1. Nothing where there is none.
std::optional<Linear> without_rounding(const Linear& linear) {
  if (std::ranges::none_of(linear.terms, [](const LinearTerm& term) { return floored(term).has_value(); }))
    return std::nullopt;
  Linear result;
  result.constant = linear.constant;
  for (const LinearTerm& term : linear.terms) {
    std::optional<Linear> next;
    if (const auto inner = floored(term)) {
      std::optional<Linear> x = linear_of(inner->x);
      if (x && inner->factor < 0) {
        const std::optional<Linear> n = linear_of(inner->n);
        x = n ? add(*x, *n, -1) : std::nullopt;
        if (x && __builtin_add_overflow(x->constant, 1, &x->constant)) x.reset();
      }
      if (x) next = add(result, *x, inner->factor);
    } else {
      Linear alone;
      alone.terms.push_back({term.atom, 1});
      next = add(result, alone, term.factor);
    }
    if (!next) return std::nullopt;
    result = std::move(*next);
  }
  return result;
}

std::optional<Linear> negated(Linear linear) {
  for (LinearTerm& term : linear.terms) {
    if (__builtin_sub_overflow(std::int64_t{0}, term.factor, &term.factor)) return std::nullopt;
  }
  if (__builtin_sub_overflow(std::int64_t{0}, linear.constant, &linear.constant)) return std::nullopt;
  return linear;
}

}  // namespace

RangeAnalysis::Int128 RangeAnalysis::plain_upper(const Linear& linear) {
  constexpr Int128 kUnbounded = Int128{1} << 100;  // the next product must still fit
  Int128 bound = linear.constant;
  for (const LinearTerm& term : linear.terms) {
    const IntInterval range = of(term.atom);
    bound += static_cast<Int128>(term.factor) * (term.factor > 0 ? range.hi : range.lo);
    if (bound > kUnbounded || bound < -kUnbounded) return kUnbounded;
  }
  return bound;
}

RangeAnalysis::Int128 RangeAnalysis::upper(const Linear& linear) {
  Linear form = linear;
  cancel_upwards(form, ranges_.along);
  Int128 bound = plain_upper(form);
  if (std::optional<Linear> loose = without_rounding(linear)) {
    cancel_upwards(*loose, ranges_.along);
    bound = std::min(bound, plain_upper(*loose));
  }
  return bound;
}

RangeAnalysis::Wide RangeAnalysis::sum(const Linear& linear) {
  const Int128 hi = upper(linear);
  const std::optional<Linear> opposite = negated(linear);
  return {opposite ? -upper(*opposite) : Int128{kLeast} * 2, hi};
}

IntInterval RangeAnalysis::of(const Linear& linear) {
  const Wide wide = sum(linear);
  return {static_cast<std::int64_t>(std::clamp<Int128>(wide.lo, kLeast, kLargest)),
          static_cast<std::int64_t>(std::clamp<Int128>(wide.hi, kLeast, kLargest))};
}

const RangeAnalysis::Known& RangeAnalysis::known(const Expr& expr) {
  if (const auto found = known_.find(expr.get()); found != known_.end()) return found->second;
  const int problems = problems_;
  const Wide wide = compute(*expr, expr);
  if (wide.lo < kLeast || wide.hi > kLargest) {
    note([&] {
      return fmt::format("`{}` can leave 64 bits; use smaller constants, or bound the sizes of the spec", shown(expr));
    });
  }
  const IntInterval range = {static_cast<std::int64_t>(std::clamp<Int128>(wide.lo, kLeast, kLargest)),
                             static_cast<std::int64_t>(std::clamp<Int128>(wide.hi, kLeast, kLargest))};
  return known_.emplace(expr.get(), Known{expr, range, problems_ == problems}).first->second;
}

IntInterval RangeAnalysis::of(const Expr& expr) { return known(expr).range; }

bool RangeAnalysis::clean(const Expr& expr) { return known(expr).clean; }

IntInterval RangeAnalysis::positive_divisor(const Expr& divisor, const Node& node) {
  const IntInterval range = of(divisor);
  if (range.lo < 1) {
    note([&] {
      return fmt::format("the divisor `{}` of `{}` {}", shown(divisor), node.op == Op::Div ? "/" : "%",
                         why_not_positive(divisor, node, range));
    });
  }
  return {std::max<std::int64_t>(range.lo, 1), std::max<std::int64_t>(range.hi, 1)};
}

RangeAnalysis::Wide RangeAnalysis::division(const Node& node) {
  const IntInterval a = of(node.args[0]), b = positive_divisor(node.args[1], node);
  const auto floor_div = [](std::int64_t x, std::int64_t y) { return x / y - (x % y < 0); };
  return {std::min(floor_div(a.lo, b.lo), floor_div(a.lo, b.hi)),
          std::max(floor_div(a.hi, b.lo), floor_div(a.hi, b.hi))};
}

RangeAnalysis::Wide RangeAnalysis::remainder(const Node& node) {
  const IntInterval a = of(node.args[0]), b = positive_divisor(node.args[1], node);
  if (a.lo >= 0 && a.hi < b.lo) return {a.lo, a.hi};
  return {0, a.lo >= 0 ? std::min(a.hi, b.hi - 1) : b.hi - 1};
}

RangeAnalysis::Wide RangeAnalysis::compute(const Node& node, const Expr& expr) {
  switch (node.op) {
    case Op::IntConst: return {node.integer, node.integer};
    case Op::Variable: {
      const IntInterval range = ranges_.of[static_cast<int>(node.variable)];
      return {range.lo, range.hi};
    }
    case Op::Scalar:
    case Op::Load: {
      const IntInterval range = range_of(node.param.dtype);
      return {range.lo, range.hi};
    }
    case Op::Div: return division(node);
    case Op::Mod: return remainder(node);
    default: break;
  }
  const IntInterval a = node.op == Op::Where ? of(node.args[1]) : of(node.args[0]);
  const IntInterval b = node.args.size() > 1 ? of(node.args.back()) : a;
  Wide wide = {kLeast, kLargest};
  switch (node.op) {
    case Op::Add: wide = {Int128{a.lo} + b.lo, Int128{a.hi} + b.hi}; break;
    case Op::Sub: wide = {Int128{a.lo} - b.hi, Int128{a.hi} - b.lo}; break;
    case Op::Neg: wide = {-Int128{a.hi}, -Int128{a.lo}}; break;
    case Op::Mul: {
      const auto corners = {Int128{a.lo} * b.lo, Int128{a.lo} * b.hi, Int128{a.hi} * b.lo, Int128{a.hi} * b.hi};
      wide = {std::min(corners), std::max(corners)};
      break;
    }
    case Op::Min: return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case Op::Max: return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Op::Where: return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Op::Abs: {
      const Int128 most = std::max(-Int128{a.lo}, Int128{a.hi});
      return {a.lo > 0 ? a.lo : a.hi < 0 ? -Int128{a.hi} : Int128{0}, most};
    }
    default: return wide;
  }
  // What the parts allow apart from each other, and what they allow together. The sum alone may be impossible to form.
  if (const std::optional<Linear> linear = linear_of(expr);
      linear && !(linear->terms.size() == 1 && same(linear->terms[0].atom, expr))) {
    const Wide together = sum(*linear);
    wide = {std::max(wide.lo, together.lo), std::min(wide.hi, together.hi)};
  } else if (node.op == Op::Mul) {
    if (const auto inner = floored({expr, 1})) {
      const IntInterval x = of(inner->x), n = of(inner->n);
      if (n.lo >= 1) wide = {std::max(wide.lo, Int128{x.lo} - n.hi + 1), std::min(wide.hi, Int128{x.hi})};
    }
  }
  return wide;
}

VariableRanges default_ranges(std::int64_t max_batch, std::int64_t heads_q, std::int64_t heads_kv,
                              std::int64_t max_q_len, std::int64_t max_k_len, Axis along) {
  const auto indices = [](std::int64_t count) { return IntInterval{0, std::max<std::int64_t>(count - 1, 0)}; };
  const std::int64_t q_len = std::clamp<std::int64_t>(max_q_len, 0, kMaxTokens);
  const std::int64_t k_len = std::clamp<std::int64_t>(max_k_len, 0, kMaxTokens);
  VariableRanges ranges;
  ranges.along = along;
  const auto set = [&](Variable variable, IntInterval range) { ranges.of[static_cast<int>(variable)] = range; };
  set(Variable::Q, indices(q_len));
  set(Variable::QLo, indices(q_len));
  set(Variable::QHi, indices(q_len + (along == Axis::Queries ? kLargestTile : 0)));
  set(Variable::K, indices(k_len));
  set(Variable::KLo, indices(k_len));
  set(Variable::KHi, indices(k_len + (along == Axis::Keys ? kLargestTile : 0)));
  set(Variable::B, indices(max_batch));
  set(Variable::H, indices(heads_q));
  set(Variable::Hk, indices(heads_kv));
  set(Variable::QLen, {0, q_len});
  set(Variable::KLen, {0, k_len});
  return ranges;
}

VariableRanges widest_ranges(Axis along) {
  constexpr std::int64_t kAny = std::int64_t{1} << 31;
  return default_ranges(kAny, kAny, kAny, kMaxTokens, kMaxTokens, along);
}

Result<std::optional<IntInterval>> interval_of(const Expr& expr, const VariableRanges& ranges) {
  if (!expr || expr->type != Type::Int) return invalid("only an int expression has an interval");
  RangeAnalysis analysis(ranges);
  const IntInterval range = analysis.of(expr);
  if (!analysis.ok()) return invalid(analysis.problem());
  if (!params_of(expr).empty()) return std::optional<IntInterval>();
  return std::optional<IntInterval>(range);
}

namespace {

// Calls visit(node, parent) for every use of a node, once per pair.
template <class Visit>
void for_each_use(const Expr& root, const Visit& visit) {
  std::set<std::pair<const Node*, const Node*>> seen;
  const auto walk = [&](const auto& self, const Expr& expr, const Node* parent) -> void {
    if (!seen.insert({expr.get(), parent}).second) return;
    visit(expr, parent);
    for (const Expr& arg : expr->args) self(self, arg, expr.get());
  };
  if (root) walk(walk, root, nullptr);
}

bool is_64_bit_leaf(const Expr& expr) {
  return (expr->op == Op::Load || expr->op == Op::Scalar) && expr->param.dtype == Dtype::I64;
}

}  // namespace

Expr wide_part(const Expr& expr, const VariableRanges& ranges) {
  RangeAnalysis analysis(ranges);
  const auto narrow = [&](const Expr& e) {
    if (e->type != Type::Int) return true;
    const IntInterval range = analysis.of(e);
    return range.lo >= std::numeric_limits<std::int32_t>::min() && range.hi <= std::numeric_limits<std::int32_t>::max();
  };
  Expr found;
  for_each_use(expr, [&](const Expr& use, const Node* parent) {
    if (parent && parent->op == Op::Bit && use.get() == parent->args[0].get() && is_64_bit_leaf(use)) return;
    if (!narrow(use) && !found && std::ranges::all_of(use->args, narrow)) found = use;
  });
  return found || analysis.ok() ? found : expr;
}

Result<void> check_ranges(const Expr& expr, const VariableRanges& ranges) {
  RangeAnalysis analysis(ranges);
  std::string shift;
  for_each_use(expr, [&](const Expr& use, const Node*) {
    if (use->type == Type::Int) analysis.of(use);
    if (use->op != Op::Bit || !shift.empty()) return;
    const IntInterval range = analysis.of(use->args[1]);
    if (range.lo >= 0 && range.hi <= 63) return;
    shift = fmt::format("bit() takes a bit number from 0 to 63, but `{0}` can be {1}; write ({0}) % 64",
                        shown(use->args[1]), range.lo < 0 ? "negative" : fmt::format("{}", range.hi));
  });
  if (!analysis.ok()) return invalid(analysis.problem());
  if (!shift.empty()) return invalid(shift);
  return {};
}

Result<std::vector<IndexRange>> index_ranges(const Expr& expr, const VariableRanges& ranges) {
  RangeAnalysis analysis(ranges);
  std::vector<IndexRange> found;
  std::set<const Node*> seen;
  for_each_use(expr, [&](const Expr& use, const Node*) {
    if (use->op != Op::Load || !seen.insert(use.get()).second) return;
    for (std::size_t i = 0; i < use->args.size(); ++i) {
      found.push_back({use->param, static_cast<int>(i), analysis.of(use->args[i])});
    }
  });
  if (!analysis.ok()) return invalid(analysis.problem());
  return found;
}

}  // namespace flashjit
