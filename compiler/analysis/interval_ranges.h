// The numeric interval analysis, for the code inside this folder and for simplify().
#pragma once

#include <string>
#include <unordered_map>

#include "compiler/language/expr_linear.h"
#include "compiler/analysis/interval.h"
#include "compiler/analysis/interval_arithmetic.h"

namespace flashjit {

class RangeAnalysis {
 public:
  explicit RangeAnalysis(const VariableRanges& ranges) : ranges_(ranges) {}

  // Returns the interval of an int expression. A scalar or a read of a tensor has the interval of its dtype. A problem
  // is noted before the interval is cut to int64.
  IntInterval of(const Expr& expr);
  // Returns true if this int expression itself caused no problem. A problem of an operand may have been noted before.
  bool clean(const Expr& expr);
  // Returns the interval of a sum, cut to int64 without noting anything.
  IntInterval of(const Linear& linear);

  // Returns the first problem found: a value that can leave int64, or a divisor that is not provably positive.
  const std::string& problem() const { return problem_; }
  bool ok() const { return problem_.empty(); }

 private:
  WideInterval compute(const Expr& expr);
  WideInterval bounded(WideInterval wide, const Together& together);
  IntInterval positive_divisor(const Expr& divisor, const Node& node);
  // The text is that of the first problem.
  template <class Words>
  void note(const Words& words) {
    ++problems_;
    if (problem_.empty()) problem_ = words();
  }

  struct Known {
    Expr expr;  // It keeps the node alive, because its address must not become another node's.
    IntInterval range;
    bool clean;
  };
  const Known& known(const Expr& expr);

  VariableRanges ranges_;
  std::unordered_map<const Node*, Known> known_;
  std::string problem_;
  int problems_ = 0;
};

// Returns ranges that hold for every spec, whatever its bounds.
VariableRanges widest_ranges(Axis along = Axis::Keys);

}  // namespace flashjit
