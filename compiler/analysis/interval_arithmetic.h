// The rules of interval arithmetic, for those who apply them to an expression at once (interval_ranges.h) and for those
// who prepare that for later (range_program.h).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "compiler/analysis/interval.h"
#include "compiler/language/expr_linear.h"

namespace flashjit {

// Before it is cut to int64.
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

// The result of an operation on ints for arguments in `a` and `b`; of where() those after the condition, of one argument
// twice the same. A divisor below 1 counts as 1: who asks has to refuse it.
WideInterval combine(Op op, IntInterval a, IntInterval b);

// Both are never smaller than the sum that they were made of: the one by what is known of its variables (of their order,
// as q < q_len), the other also forgets the rounding of divisions.
struct UpperForms {
  Linear ordered;
  std::optional<Linear> unrounded;
};

// Facts about an expression beside the intervals of its arguments: the upper forms of it and of its negation, or that
// it is x rounded down to a multiple of n.
struct Together {
  std::optional<UpperForms> above;
  std::optional<UpperForms> below;  // of the negation; may be missing where `above` is not
  Expr rounded, multiple;           // x and n; both or none
};
Together together_of(const Expr& expr, Axis along);
Together together_of(const Linear& sum, Axis along);

// The largest value of a sum of which `range_of(atom)` gives the intervals.
template <class Form, class RangeOf>
Int128 largest(const Form& form, const RangeOf& range_of) {
  constexpr Int128 kUnbounded = Int128{1} << 100;  // the next product must still fit
  Int128 bound = form.constant;
  for (const auto& term : form.terms) {
    const IntInterval range = range_of(term.atom);
    bound += static_cast<Int128>(term.factor) * (term.factor > 0 ? range.hi : range.lo);
    if (bound > kUnbounded || bound < -kUnbounded) return kUnbounded;
  }
  return bound;
}

// The interval of n * floor(x / n), from those of x and n.
constexpr WideInterval rounded_down(IntInterval x, IntInterval n) { return {Int128{x.lo} - n.hi + 1, Int128{x.hi}}; }

// Facts that hold for both.
constexpr WideInterval intersection(WideInterval a, WideInterval b) {
  return {a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi};
}

}  // namespace flashjit
