// The working part of the numeric interval analysis, shared by its users inside this folder.
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

  // The interval of an int expression; by dtype where it comes from a scalar or a tensor. Cut to int64, after noting a
  // problem.
  IntInterval of(const Expr& expr);
  // Did the interval of this int expression come about without a problem? (That of an operand may have been noted before.)
  bool clean(const Expr& expr);
  // The interval of a sum, cut to int64 without noting anything.
  IntInterval of(const Linear& linear);

  // The first thing found wrong: a value that can leave int64, or a divisor that is not provably positive.
  const std::string& problem() const { return problem_; }
  bool ok() const { return problem_.empty(); }

 private:
  WideInterval compute(const Expr& expr);
  WideInterval bounded(WideInterval wide, const Together& together);
  IntInterval positive_divisor(const Expr& divisor, const Node& node);
  // The words are those of the first one.
  template <class Words>
  void note(const Words& words) {
    ++problems_;
    if (problem_.empty()) problem_ = words();
  }

  struct Known {
    Expr expr;  // keeps it alive: a node's address must not come back as another node's
    IntInterval range;
    bool clean;
  };
  const Known& known(const Expr& expr);

  VariableRanges ranges_;
  std::unordered_map<const Node*, Known> known_;
  std::string problem_;
  int problems_ = 0;
};

// Ranges that hold for every spec: what may be assumed without knowing its bounds.
VariableRanges widest_ranges(Axis along = Axis::Keys);

}  // namespace flashjit
