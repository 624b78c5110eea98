// The rules of interval arithmetic, which are applied to an expression at once (interval_ranges.h) or prepared for
// later (range_program.h).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "compiler/analysis/interval.h"
#include "compiler/language/expr_linear.h"

namespace flashjit {

// An interval before it is cut to int64.
__extension__ using Int128 = __int128;
struct WideInterval {
  Int128 lo, hi;
};
inline constexpr WideInterval kAnything = {-(Int128{1} << 100), Int128{1} << 100};
IntInterval cut(WideInterval wide);
constexpr WideInterval wide(IntInterval interval) { return {interval.lo, interval.hi}; }
constexpr bool fits(WideInterval wide) {
  return wide.lo >= std::numeric_limits<std::int64_t>::min() && wide.hi <= std::numeric_limits<std::int64_t>::max();
}

// Returns the interval of an operation on ints for arguments in `a` and `b`. where() gives its arguments behind the
// condition, and an operation of one argument gives it twice. A divisor below 1 counts as 1, so the caller has to
// refuse it.
WideInterval combine(Op op, IntInterval a, IntInterval b);

// Both forms are never smaller than the sum from which they were made. One uses the order of variables, such as q <
// q_len; the other also drops the rounding of divisions.
struct UpperForms {
  Linear ordered;
  std::optional<Linear> unrounded;
};

// Facts about an expression besides the intervals of its arguments: upper forms of the expression and of its negation,
// or that it is x rounded down to a multiple of n.
struct Together {
  std::optional<UpperForms> above;
  std::optional<UpperForms> below;  // The forms of the negation. They may be missing where `above` is not.
  Expr rounded, multiple;           // They are x and n, and both or none are set.
};
Together together_of(const Expr& expr, Axis along);
Together together_of(const Linear& sum, Axis along);

// Returns the largest value of a sum. `range_of(atom)` gives the intervals of its atoms.
template <class Form, class RangeOf>
Int128 largest(const Form& form, const RangeOf& range_of) {
  constexpr Int128 kUnbounded = Int128{1} << 100;  // The next product must still fit.
  Int128 bound = form.constant;
  for (const auto& term : form.terms) {
    const IntInterval range = range_of(term.atom);
    bound += static_cast<Int128>(term.factor) * (term.factor > 0 ? range.hi : range.lo);
    if (bound > kUnbounded || bound < -kUnbounded) return kUnbounded;
  }
  return bound;
}

// Returns the interval of n * floor(x / n) from the intervals of x and n.
constexpr WideInterval rounded_down(IntInterval x, IntInterval n) { return {Int128{x.lo} - n.hi + 1, Int128{x.hi}}; }

// Returns the interval of values that lie in both.
constexpr WideInterval intersection(WideInterval a, WideInterval b) {
  return {a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi};
}

}  // namespace flashjit
