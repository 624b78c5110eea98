#include "runtime/launch/dropout_mask.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/spec/dropout.h"
#include "runtime/launch/tensor_check.h"
#include "templates/dropout.h"

namespace flashjit {
namespace {

constexpr TensorRule kKept{.name = "kept",
                           .dtype = Dtype::U8,
                           .rank = 4,
                           .output = true,
                           .contiguous_last = false,
                           .place = TensorView::Place::Host};
constexpr std::int64_t kBlock = 16;  // of queries, and of keys: four times four calls

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
  // What one call decides, beginning with its first query and key.
  const auto write = [&](std::int64_t b, std::int64_t h, std::int64_t first_q, std::int64_t first_k) {
    const FourWords words = dropout_words(key, static_cast<unsigned>(b), static_cast<unsigned>(h),
                                          static_cast<unsigned>(first_q), static_cast<unsigned>(first_k));
    for (const int i : {0, 1, 8, 9}) {
      for (const int j : {0, 1, 8, 9}) {
        const std::int64_t q = first_q + i, k = first_k + j;
        if (q >= d.size[2] || k >= d.size[3]) continue;
        const unsigned number = dropout_number(words, static_cast<unsigned>(q), static_cast<unsigned>(k));
        const std::int64_t at = b * d.stride[0] + h * d.stride[1] + q * d.stride[2] + k * d.stride[3];
        static_cast<std::uint8_t*>(kept.data)[at] = is_dropped(number, dropped) ? 0 : 1;
      }
    }
  };
  const auto each_call = [&](std::int64_t size, const auto& visit) {
    for (std::int64_t first = 0; first < size; first += kBlock) {
      for (std::int64_t i = first; i < std::min(first + kBlock / 2, size); i += 2) visit(i);
    }
  };
  for (std::int64_t b = 0; b < d.size[0]; ++b) {
    for (std::int64_t h = 0; h < d.size[1]; ++h)
      each_call(d.size[2], [&](std::int64_t q) { each_call(d.size[3], [&](std::int64_t k) { write(b, h, q, k); }); });
  }
  return {};
}

}  // namespace flashjit
