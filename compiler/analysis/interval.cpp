#include "compiler/analysis/interval.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "compiler/analysis/interval_ranges.h"

namespace flashjit {
namespace {

// The end of the last tile of a loop may lie this far behind the length.
constexpr std::int64_t kLargestTile = 4096;

// Long expressions are cut, because the message is one line.
std::string shown(const Expr& expr) {
  std::string text = print(expr);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

// Explains why a divisor that lies in `range` need not be positive, and what to write instead. The advice gives the
// same quotient where there is one.
std::string why_not_positive(const Expr& divisor, const Node& node, IntInterval range) {
  if (range.lo == 0 && range.hi == 0) return "is 0, and must be positive; use 1 or more";
  if (range.hi <= 0) {
    return fmt::format("is {}, and must be positive; negate {}", range.hi < 0 ? "negative" : "never positive",
                       node.op == Op::Div ? "both sides" : "it");
  }
  return fmt::format("can be {}, and must be positive; write max({}, 1)", range.lo < 0 ? "negative" : "0",
                     shown(divisor));
}

bool fits_32_bits(IntInterval range) {
  return range.lo >= std::numeric_limits<std::int32_t>::min() && range.hi <= std::numeric_limits<std::int32_t>::max();
}

// Returns the name of a parameter of 64 bits that makes the value of `expr` large, or nothing: one that is cut makes none.
std::string_view parameter_of_64_bits(RangeAnalysis& analysis, const Expr& expr) {
  if (expr->op == Op::Load || expr->op == Op::Scalar)
    return expr->param.dtype == Dtype::I64 ? std::string_view(expr->param.name) : std::string_view();
  for (const Expr& arg : expr->args) {
    if (arg->type != Type::Int || fits_32_bits(analysis.of(arg))) continue;
    if (const std::string_view name = parameter_of_64_bits(analysis, arg); !name.empty()) return name;
  }
  return {};
}

std::string way_to_fewer_bits(RangeAnalysis& analysis, const Expr& expr) {
  const std::string_view name = parameter_of_64_bits(analysis, expr);
  if (name.empty()) return "use smaller constants, or bound the sizes of the spec";
  return fmt::format("`{}` is i64, which may be any number of 64 bits: make it i32, or cut it with min and max", name);
}

}  // namespace

IntInterval range_of(Dtype dtype) {
  if (is_float(dtype) || size_of(dtype) == 8)
    return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  const std::int64_t values = std::int64_t{1} << 8 * size_of(dtype);
  return is_unsigned(dtype) ? IntInterval{0, values - 1} : IntInterval{-values / 2, values / 2 - 1};
}

WideInterval RangeAnalysis::bounded(WideInterval wide, const Together& together) {
  const auto upper = [&](const UpperForms& forms) {
    const auto range_of = [&](const Expr& atom) { return of(atom); };
    const Int128 bound = largest(forms.ordered, range_of);
    return forms.unrounded ? std::min(bound, largest(*forms.unrounded, range_of)) : bound;
  };
  if (together.above) wide.hi = std::min(wide.hi, upper(*together.above));
  if (together.below) wide.lo = std::max(wide.lo, -upper(*together.below));
  if (together.rounded) {
    const IntInterval x = of(together.rounded), n = of(together.multiple);
    if (n.lo >= 1) wide = intersection(wide, rounded_down(x, n));
  }
  return wide;
}

IntInterval RangeAnalysis::of(const Linear& linear) {
  return cut(bounded(kAnything, together_of(linear, ranges_.along)));
}

const RangeAnalysis::Known& RangeAnalysis::known(const Expr& expr) {
  if (const auto found = known_.find(expr.get()); found != known_.end()) return found->second;
  const int problems = problems_;
  const WideInterval wide = compute(expr);
  if (!fits(wide))
    note([&] { return fmt::format("`{}` can leave 64 bits; {}", shown(expr), way_to_fewer_bits(*this, expr)); });
  return known_.emplace(expr.get(), Known{expr, cut(wide), problems_ == problems}).first->second;
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
  return range;
}

WideInterval RangeAnalysis::compute(const Expr& expr) {
  const Node& node = *expr;
  switch (node.op) {
    case Op::IntConst: return {node.integer, node.integer};
    case Op::Variable: return wide(ranges_.of[static_cast<int>(node.variable)]);
    case Op::Scalar:
    case Op::Load: return wide(range_of(node.param.dtype));
    default: break;
  }
  const IntInterval a = node.op == Op::Where ? of(node.args[1]) : of(node.args[0]);
  const IntInterval b = node.op == Op::Div || node.op == Op::Mod ? positive_divisor(node.args[1], node)
                        : node.args.size() > 1                   ? of(node.args.back())
                                                                 : a;
  return bounded(combine(node.op, a, b), together_of(expr, ranges_.along));
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

namespace {

// Calls visit(node, parent) for every use of a node, once for each pair.
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

Expr wide_subexpression(const Expr& expr, const VariableRanges& ranges) {
  RangeAnalysis analysis(ranges);
  const auto narrow = [&](const Expr& e) {
    if (e->type != Type::Int) return true;
    return fits_32_bits(analysis.of(e));
  };
  Expr found;
  for_each_use(expr, [&](const Expr& use, const Node* parent) {
    const bool takes_64_bits =
        parent && (parent->op == Op::Load || (parent->op == Op::Bit && use.get() == parent->args[0].get()));
    if (takes_64_bits && is_64_bit_leaf(use) && (use->op == Op::Load || parent->op == Op::Bit)) return;
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

}  // namespace flashjit
