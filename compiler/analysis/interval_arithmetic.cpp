#include "compiler/analysis/interval_arithmetic.h"

#include <algorithm>
#include <array>
#include <limits>

namespace flashjit {
namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// It holds that x <= y - distance.
struct Order {
  Variable x, y;
  std::int64_t distance;
};
// The y of a row may be the x of a later row.
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

// Replaces x by y - distance as far as that cancels y. The result is never smaller.
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

// A term n * floor(x / n) with a constant n, of which the term's factor must be a multiple, or with any n if the atom
// is the product.
struct Floored {
  Expr x, n;
  std::int64_t factor = 0;  // The factor of x once the rounding is dropped.
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

// Drops the rounding of n * floor(x / n), which is at most x and at least x - n + 1. Returns nothing if there is none.
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

WideInterval division(IntInterval a, IntInterval b) {
  const auto floor_div = [](std::int64_t x, std::int64_t y) { return x / y - (x % y < 0); };
  return {std::min(floor_div(a.lo, b.lo), floor_div(a.lo, b.hi)),
          std::max(floor_div(a.hi, b.lo), floor_div(a.hi, b.hi))};
}

WideInterval remainder(IntInterval a, IntInterval b) {
  if (a.lo >= 0 && a.hi < b.lo) return {a.lo, a.hi};
  return {0, a.lo >= 0 ? std::min(a.hi, b.hi - 1) : b.hi - 1};
}

UpperForms upper_forms(const Linear& sum, Axis along) {
  UpperForms forms{sum, without_rounding(sum)};
  cancel_upwards(forms.ordered, along);
  if (forms.unrounded) cancel_upwards(*forms.unrounded, along);
  return forms;
}

}  // namespace

IntInterval cut(WideInterval wide) {
  return {static_cast<std::int64_t>(std::clamp<Int128>(wide.lo, kLeast, kLargest)),
          static_cast<std::int64_t>(std::clamp<Int128>(wide.hi, kLeast, kLargest))};
}

WideInterval combine(Op op, IntInterval a, IntInterval b) {
  const auto divisor = [&] { return IntInterval{std::max<std::int64_t>(b.lo, 1), std::max<std::int64_t>(b.hi, 1)}; };
  switch (op) {
    case Op::Add: return {Int128{a.lo} + b.lo, Int128{a.hi} + b.hi};
    case Op::Sub: return {Int128{a.lo} - b.hi, Int128{a.hi} - b.lo};
    case Op::Neg: return {-Int128{a.hi}, -Int128{a.lo}};
    case Op::Mul: {
      const auto corners = {Int128{a.lo} * b.lo, Int128{a.lo} * b.hi, Int128{a.hi} * b.lo, Int128{a.hi} * b.hi};
      return {std::min(corners), std::max(corners)};
    }
    case Op::Div: return division(a, divisor());
    case Op::Mod: return remainder(a, divisor());
    case Op::Min: return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case Op::Max: return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Op::Where: return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Op::Abs: {
      const Int128 most = std::max(-Int128{a.lo}, Int128{a.hi});
      return {a.lo > 0 ? a.lo : a.hi < 0 ? -Int128{a.hi} : Int128{0}, most};
    }
    default: return {kLeast, kLargest};
  }
}

Together together_of(const Linear& sum, Axis along) {
  Together together;
  together.above = upper_forms(sum, along);
  if (const std::optional<Linear> opposite = negated(sum)) together.below = upper_forms(*opposite, along);
  return together;
}

Together together_of(const Expr& expr, Axis along) {
  switch (expr->op) {
    case Op::Add:
    case Op::Sub:
    case Op::Neg:
    case Op::Mul: break;
    default: return {};
  }
  // The terms of a sum bound it together. It may be impossible to form the sum.
  const std::optional<Linear> sum = linear_of(expr);
  if (sum && !(sum->terms.size() == 1 && same(sum->terms[0].atom, expr))) return together_of(*sum, along);
  Together together;
  if (expr->op != Op::Mul) return together;
  if (const auto inner = floored({expr, 1})) together.rounded = inner->x, together.multiple = inner->n;
  return together;
}

}  // namespace flashjit
