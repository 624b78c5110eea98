#include "runtime/launch/value_range.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace flashjit {
namespace {

constexpr int kMaxRank = kMaxParamRank;

// Elements [first, last] of the innermost dimension, of the type that they have.
template <class T>
void widen(IntInterval& range, const char* row, std::int64_t first, std::int64_t last, std::int64_t stride) {
  for (std::int64_t i = first; i <= last; ++i) {
    T value;
    std::memcpy(&value, row + i * stride * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    range.lo = std::min(range.lo, static_cast<std::int64_t>(value));
    range.hi = std::max(range.hi, static_cast<std::int64_t>(value));
  }
}

using Widen = void (*)(IntInterval&, const char*, std::int64_t, std::int64_t, std::int64_t);

Widen widen_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::I32: return widen<std::int32_t>;
    case Dtype::U32: return widen<std::uint32_t>;
    case Dtype::U8: return widen<std::uint8_t>;
    default: return widen<std::int64_t>;
  }
}

}  // namespace

IntInterval range_of_values(const TensorView& tensor, Dtype dtype, std::span<const IntInterval> box) {
  const int rank = static_cast<int>(box.size());
  std::int64_t first[kMaxRank], last[kMaxRank], at[kMaxRank], stride[kMaxRank];
  std::int64_t contiguous = 1;
  for (int d = rank - 1; d >= 0; --d) {
    stride[d] = tensor.strides ? tensor.strides[d] : contiguous;
    contiguous *= tensor.shape[d];
    at[d] = first[d] = std::max<std::int64_t>(box[static_cast<std::size_t>(d)].lo, 0);
    last[d] = std::min(box[static_cast<std::size_t>(d)].hi, tensor.shape[d] - 1);
    if (first[d] > last[d]) return {0, 0};
  }
  const Widen widen = widen_of(dtype);
  IntInterval range{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
  const int inner = rank - 1;
  for (int d = 0; d >= 0;) {
    std::int64_t offset = 0;
    for (int i = 0; i < inner; ++i) offset += at[i] * stride[i];
    widen(range, static_cast<const char*>(tensor.data) + offset * size_of(dtype), first[inner], last[inner],
          stride[inner]);
    // The next row: the last of the other dimensions that has one goes on, those behind it begin again.
    for (d = inner - 1; d >= 0 && at[d] == last[d]; --d) at[d] = first[d];
    if (d >= 0) ++at[d];
  }
  return range;
}

}  // namespace flashjit
