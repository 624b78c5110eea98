// Checks of one tensor, which arguments.cpp combines.
#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/spec/dtype.h"
#include "compiler/spec/operands.h"
#include "compiler/result.h"
#include "runtime/launch/call.h"

namespace flashjit {

// Sizes and strides of a tensor, with those of a contiguous one filled in.
struct Dimensions {
  int rank = 0;
  std::int64_t size[kMaxTensorRank] = {}, stride[kMaxTensorRank] = {};
  std::int64_t reach = 0;  // elements from the first to the last one
  std::int64_t bytes = 0;  // from the begin of the first one to the end of the last one; 0 if there is none
};

struct TensorRule {
  std::string_view name;
  std::string_view group = {};  // "params."
  Dtype dtype = Dtype::F32;
  bool any_bytes = false;  // with U8: elements of e4m3 are bytes, too
  int rank = 0;
  bool output = false;          // no two elements may share an address
  int contiguous = 1;           // so many of the last dimensions lie without gaps
  int align_bytes = 0;          // 0: that of the element
  std::int64_t most_bytes = 0;  // not 0: kernels reach no more from its begin
  TensorView::Device device = TensorView::Device::Unknown;
  int ordinal = 0;
};

// Data, dtype, rank, sizes, strides and alignment of one tensor.
Result<Dimensions> check_tensor(const TensorView& tensor, const TensorRule& rule);

// size[dimension] must be `wanted`; `meaning` says what that is.
Result<void> check_size(const TensorRule& rule, const Dimensions& dimensions, int dimension, std::int64_t wanted,
                        std::string_view meaning);

}  // namespace flashjit
