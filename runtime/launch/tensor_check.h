// These functions check one tensor; arguments.cpp combines them.
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
  std::int64_t bytes = 0;  // from the begin of the first element to the end of the last one; 0 if there is none
};

struct TensorRule {
  std::string_view name;
  std::string_view group = {};  // for example "params."
  Dtype dtype = Dtype::F32;
  bool any_bytes = false;  // With U8 it also takes e4m3, whose elements are bytes, too.
  int rank = 0;
  bool output = false;          // No two elements of an output may share an address.
  int contiguous = 1;           // number of last dimensions that lie without gaps
  int align_bytes = 0;          // 0 stands for the alignment of the element.
  std::int64_t most_bytes = 0;  // If not 0, kernels reach less than this many bytes from its begin.
  TensorView::Device device = TensorView::Device::Unknown;
  int ordinal = 0;
};

// Checks the data, dtype, rank, sizes, strides and alignment of one tensor.
Result<Dimensions> check_tensor(const TensorView& tensor, const TensorRule& rule);

// Checks that size[dimension] is `wanted`; `meaning` tells in the error what that size is.
Result<void> check_size(const TensorRule& rule, const Dimensions& dimensions, int dimension, std::int64_t wanted,
                        std::string_view meaning);

}  // namespace flashjit
