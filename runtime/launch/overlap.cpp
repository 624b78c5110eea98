#include "runtime/launch/overlap.h"

#include <fmt/format.h>

namespace flashjit {
namespace {

struct Bytes {
  std::uint64_t begin;
  Dimensions d;  // Its strides are in bytes.
  std::int64_t element;
};

Bytes bytes_of(const TensorView& tensor, const TensorRule& rule, std::uint64_t begin) {
  Bytes bytes{begin, *check_tensor(tensor, rule), size_of(rule.dtype)};
  for (int i = 0; i < bytes.d.rank; ++i) bytes.d.stride[i] *= bytes.element;
  return bytes;
}

// Returns how many bytes the tensor covers behind every multiple of the period, to which its other strides lead.
std::int64_t width(const Bytes& bytes, std::int64_t period) {
  std::int64_t width = bytes.element;
  for (int i = 0; i < bytes.d.rank; ++i) {
    if (bytes.d.stride[i] % period != 0) width += bytes.d.stride[i] * (bytes.d.size[i] - 1);
  }
  return width;
}

// Returns whether both tensors repeat after `period` bytes and are columns beside each other.
bool repeat_beside(const Bytes& a, const Bytes& b, std::int64_t period) {
  if (period == 0) return false;
  const auto size = static_cast<std::uint64_t>(period);
  const std::uint64_t from_a_to_b = (b.begin - a.begin) % size, from_b_to_a = (size - from_a_to_b) % size;
  return from_a_to_b != 0 && width(a, period) <= static_cast<std::int64_t>(from_a_to_b) &&
         width(b, period) <= static_cast<std::int64_t>(from_b_to_a);
}

}  // namespace

// Slices of one tensor, such as q and o of [batch, tokens, 4, heads, d], share no bytes. Tensors that lie apart in
// other ways than side by side count as shared, because finding that out can take any time.
bool Overlaps::are_columns(const Footprint& a, const Footprint& b) {
  const bool in_order = a.begin <= b.begin;
  const Footprint &first = in_order ? a : b, &second = in_order ? b : a;
  const Bytes x = bytes_of(*first.tensor, *first.rule, first.begin);
  const Bytes y = bytes_of(*second.tensor, *second.rule, second.begin);
  for (const Bytes* of : {&x, &y}) {
    for (int i = 0; i < of->d.rank; ++i) {
      if (repeat_beside(x, y, of->d.stride[i])) return true;
    }
  }
  return false;
}

Result<void> Overlaps::refuse(const Footprint& output, const Footprint& other) {
  return invalid(fmt::format(
      "{}: its bytes {:#x}..{:#x} overlap {:#x}..{:#x} of {}{}, which the kernel {} at the same time; give {} memory "
      "of its own, or columns of one tensor beside those of {}",
      output.rule->name, output.begin, output.end - 1, other.begin, other.end - 1, other.rule->group, other.rule->name,
      other.rule->output ? "writes" : "reads", output.rule->name, other.rule->name));
}

}  // namespace flashjit
