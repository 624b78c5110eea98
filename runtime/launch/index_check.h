// Does every index of a tensor parameter lie inside its tensor, at the sizes and with the scalars of a call? Where it is
// looked up in another tensor: with all that this one holds in the elements that may be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/analysis/range_program.h"
#include "compiler/result.h"
#include "compiler/spec/spec.h"
#include "runtime/launch/call.h"
#include "runtime/launch/grid.h"

namespace flashjit {

// The smallest and the largest of a tensor's ints in a box: dimension by dimension, those of an interval, as far as the
// tensor has them. It is 0 where there are none. The tensor can be read here.
IntInterval range_of_values(const TensorView& tensor, Dtype dtype, std::span<const IntInterval> box);

class IndexChecker {
 public:
  explicit IndexChecker(const AttentionSpec& spec);
  bool nothing() const { return indices_.empty(); }

  // `params`, `scalars`: parallel to those of the spec. `readable`: tensors can be read here. If not, kernels cut what is
  // looked up to its tensor, which must not be empty.
  Result<void> check(const AttentionSpec& spec, const CallSizes& sizes, const ParamView* const* params,
                     const std::int64_t* scalars, bool readable) const;

  // For who makes the tensors: what check() will compare with their shapes.
  struct IndexRange {
    int param = 0, dimension = 0;
    std::string text;
    IntInterval range;
  };
  std::vector<IndexRange> ranges(const AttentionSpec& spec, const CallSizes& sizes, const std::int64_t* scalars,
                                 const RangeProgram::RangeOfRead& range_of_read) const;

 private:
  // As it stands in the mask or score.
  struct Index {
    int param = 0, dimension = 0;
    bool by_position = false;  // the element depends on q or k: without keys it is not read
    int look_ups = 0;          // reads of tensors in it, one inside of the other
    int slot = 0;              // of its range
    // For messages: as text, the numbers of the int scalars in it, and the names of the tensors that it reads. A launch
    // walks no expression: that takes stack.
    std::string text;
    std::vector<std::size_t> scalars;
    std::string tensors;
  };
  void collect(const AttentionSpec& spec, const Expr& expr);

  RangeProgram ranges_;
  std::vector<Index> indices_;  // after those of the tensors in which they are looked up
};

}  // namespace flashjit
