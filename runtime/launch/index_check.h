// The check is whether every index of a tensor parameter lies inside its tensor, at the sizes and with the scalars of a
// call. An index that is looked up in another tensor is checked with all values of the elements that may be read there.
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

// Returns the smallest and the largest of a tensor's integers in a box. The box has an interval for each dimension,
// which is cut to the tensor. An empty box gives 0. The tensor must be readable here.
IntInterval range_of_values(const TensorView& tensor, Dtype dtype, std::span<const IntInterval> box);

class IndexChecker {
 public:
  explicit IndexChecker(const AttentionSpec& spec);
  bool nothing() const { return indices_.empty(); }

  // `params` and `scalars` are parallel to those of the spec. `readable` means that tensors can be read here. If they
  // cannot, kernels cut an index that is looked up to its tensor, which must not be empty.
  Result<void> check(const AttentionSpec& spec, const CallSizes& sizes, const ParamView* const* params,
                     const std::int64_t* scalars, bool readable) const;

  // Callers who make the tensors can ask what check() will compare with their shapes.
  struct IndexRange {
    int param = 0, dimension = 0;
    std::string text;
    IntInterval range;
  };
  std::vector<IndexRange> ranges(const AttentionSpec& spec, const CallSizes& sizes, const std::int64_t* scalars,
                                 const RangeProgram::RangeOfRead& range_of_read) const;

 private:
  // This is one index as it stands in the mask or score.
  struct Index {
    int param = 0, dimension = 0;
    bool by_position = false;  // The element depends on q or k. Without keys it is not read.
    int look_ups = 0;          // depth of nested reads of tensors in it
    int slot = 0;              // where the range of this index is kept
    // Messages need the index as text, the numbers of the int scalars in it, and the names of the tensors that it
    // reads. They are kept because a launch must not walk an expression, which takes stack.
    std::string text;
    std::vector<std::size_t> scalars;
    std::string tensors;
  };
  void collect(const AttentionSpec& spec, const Expr& expr);

  RangeProgram ranges_;
  std::vector<Index> indices_;  // An index comes after those of the tensors in which it is looked up.
};

}  // namespace flashjit
