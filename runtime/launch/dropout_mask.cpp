#include "runtime/launch/dropout_mask.h"

#include <fmt/format.h>

#include "compiler/spec/fields/dropout.h"
#include "runtime/launch/tensor_check.h"
#include "templates/dropout.h"

namespace flashjit {
namespace {

constexpr TensorRule kKept{
    .name = "kept", .dtype = Dtype::U8, .rank = 4, .output = true, .contiguous = 0, .device = TensorView::Device::Host};

}  // namespace

Result<void> write_dropout_mask(double dropout, std::int64_t seed, std::int64_t offset, const TensorView& kept) {
  AttentionSpec spec;
  spec.dropout = dropout;
  FLASHJIT_TRY(check_dropout(spec));
  FLASHJIT_ASSIGN(d, check_tensor(kept, kKept));
  for (const std::int64_t size : d.size) {
    if (size <= SizeBound::kLargest) continue;
    return invalid(fmt::format("kept.shape: {} is above {}, the largest size of a call", size, SizeBound::kLargest));
  }
  const int dropped = dropped_of(dropout);
  const FourWords key = dropout_key(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(offset));
  for (unsigned b = 0; b < d.size[0]; ++b) {
    for (unsigned h = 0; h < d.size[1]; ++h) {
      for (unsigned q = 0; q < d.size[2]; ++q) {
        std::uint8_t* row = static_cast<std::uint8_t*>(kept.data) + b * d.stride[0] + h * d.stride[1] + q * d.stride[2];
        for (unsigned k = 0; k < d.size[3]; ++k)
          row[k * d.stride[3]] = is_dropped(dropout_number(dropout_words(key, b, h, q, k), q, k), dropped) ? 0 : 1;
      }
    }
  }
  return {};
}

}  // namespace flashjit
