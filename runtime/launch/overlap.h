// Outputs and the workspace of a call may share no memory with an input or with each other, because kernels read inputs
// to the end and their blocks run in no order.
#pragma once

#include <array>
#include <cstdint>

#include "compiler/result.h"
#include "compiler/spec/operands.h"
#include "runtime/launch/tensor_check.h"

namespace flashjit {

class Overlaps {
 public:
  // The tensor has passed check_tensor(). It and its rule outlive this object.
  void add(const TensorView& tensor, const TensorRule& rule, const Dimensions& dimensions) {
    if (dimensions.bytes == 0) return;
    const auto begin = reinterpret_cast<std::uint64_t>(tensor.data);
    if (rule.output) outputs_[output_count_++] = static_cast<int>(count_);
    all_[count_++] = {begin, begin + static_cast<std::uint64_t>(dimensions.bytes), &tensor, &rule};
  }
  Result<void> check() const {
    for (int i = 0; i < output_count_; ++i) {
      const Footprint& output = all_[static_cast<std::size_t>(outputs_[i])];
      for (std::size_t j = 0; j < count_; ++j) {
        const Footprint& other = all_[j];
        if (output.begin >= other.end || other.begin >= output.end || &other == &output) continue;
        if (!are_columns(output, other)) return refuse(output, other);
      }
    }
    return {};
  }

 private:
  struct Footprint {
    std::uint64_t begin, end;  // bytes
    const TensorView* tensor;
    const TensorRule* rule;
  };
  static bool are_columns(const Footprint& a, const Footprint& b);
  static Result<void> refuse(const Footprint& output, const Footprint& other);

  // Only the first `count_` and `output_count_` elements are set. The workspace adds one to the tensors of a call.
  std::array<Footprint, kOperands.size() + kMaxParams + kMaxGradients + 1> all_;
  int outputs_[kOperands.size() + kMaxGradients + 1];
  std::size_t count_ = 0;
  int output_count_ = 0;
};

}  // namespace flashjit
