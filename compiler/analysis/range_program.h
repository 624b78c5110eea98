// The interval analysis of a few int expressions, prepared so that a launch evaluates it with its own sizes and scalars
// in some ten nanoseconds, without allocating.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/analysis/interval_arithmetic.h"

namespace flashjit {

class RangeProgram {
 public:
  // `params` are those that may occur.
  explicit RangeProgram(std::span<const Param> params) : params_(params.begin(), params.end()) {}

  // Returns the slot into which evaluate() puts the interval of this expression.
  int add(const Expr& expr);
  int slots() const { return static_cast<int>(steps_.size()); }
  // Gives the range of the ints that parameter `param` holds where its indices lie in these intervals.
  using RangeOfRead = std::function<IntInterval(int param, std::span<const IntInterval> indices)>;
  // Evaluates the program for ranges along the axis of `default_ranges()`. `scalars` are the values of the int scalars,
  // parallel to the params. `values` has room for slots() intervals.
  void evaluate(const VariableRanges& ranges, const std::int64_t* scalars, const RangeOfRead& range_of_read,
                IntInterval* values) const;

 private:
  static constexpr int kNone = -1;
  struct Term {
    int atom = kNone;
    std::int64_t factor = 0;
  };
  struct Form {
    std::vector<Term> terms;
    std::int64_t constant = 0;
  };
  struct Step {
    Op op = Op::IntConst;
    std::int64_t integer = 0;  // It is the value of an IntConst, or the number of a Variable, Scalar or Load.
    int a = kNone, b = kNone;  // The slots of its arguments.
    std::vector<int> indices;  // The slots of the indices of a Load.
    std::vector<Form> above, below;
    int rounded = kNone, multiple = kNone;
  };
  int step_of(const Expr& expr);
  std::vector<Form> prepared(const UpperForms& forms) const;
  static WideInterval interval_of(const Step& step, const IntInterval* values);

  std::vector<Param> params_;
  std::vector<Step> steps_;                     // Each step comes after the steps that it uses.
  std::unordered_map<const Node*, int> slots_;  // `kept_` keeps the nodes alive.
  std::vector<Expr> kept_;
};

}  // namespace flashjit
