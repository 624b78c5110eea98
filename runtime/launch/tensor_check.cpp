#include "runtime/launch/tensor_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "compiler/families/family.h"
#include "compiler/spec/spec_names.h"
#include "compiler/spec/text_form.h"

namespace flashjit {
namespace {

// Element offsets stay far from the end of 64 bits, so that the kernels' sums of offsets cannot overflow.
constexpr std::int64_t kLargestOffset = std::int64_t{1} << 56;

Result<void> check_device(const TensorView& tensor, const TensorRule& rule) {
  using Device = TensorView::Device;
  if (tensor.device == Device::Unknown || rule.device == Device::Unknown) return {};
  if (tensor.device != rule.device) {
    return invalid(fmt::format("{}{}: lies in {} memory, and this kernel runs on the {}; copy it there first",
                               rule.group, rule.name, tensor.device == Device::Host ? "host" : "GPU",
                               rule.device == Device::Host ? "host" : "GPU"));
  }
  if (rule.device == Device::Gpu && tensor.ordinal != rule.ordinal) {
    return invalid(
        fmt::format("{}{}: lies on GPU {}, and this kernel is loaded on GPU {}; copy it there, or create an engine "
                    "with ordinal={}",
                    rule.group, rule.name, tensor.ordinal, rule.ordinal, tensor.ordinal));
  }
  return {};
}

Result<Dimensions> read_dimensions(const TensorView& tensor, const TensorRule& rule) {
  Dimensions d{.rank = tensor.rank};
  for (int i = 0; i < d.rank; ++i) {
    d.size[i] = tensor.shape[i];
    if (d.size[i] < 0)
      return invalid(
          fmt::format("{}{}.shape[{}]: {} is negative; sizes start at 0", rule.group, rule.name, i, d.size[i]));
    if (tensor.strides && tensor.strides[i] < 0) {
      return invalid(fmt::format("{}{}.strides[{}]: {} is negative; pass a copy that is not reversed", rule.group,
                                 rule.name, i, tensor.strides[i]));
    }
  }
  std::int64_t next = 1;
  for (int i = d.rank - 1; i >= 0; --i) {
    d.stride[i] = tensor.strides ? tensor.strides[i] : next;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(next, std::max<std::int64_t>(d.size[i], 1), &next) ||
        __builtin_mul_overflow(d.stride[i], std::max<std::int64_t>(d.size[i] - 1, 0), &reach) ||
        __builtin_add_overflow(d.reach, reach, &d.reach) || d.reach > kLargestOffset || next > kLargestOffset) {
      return invalid(
          fmt::format("{}{}: shape and strides reach beyond 2^56 elements; look at dimension {} (size {}, stride {})",
                      rule.group, rule.name, i, d.size[i], d.stride[i]));
    }
  }
  return d;
}

Result<void> check_address(const TensorView& tensor, const Dimensions& d, const TensorRule& rule) {
  if (!tensor.data) return invalid(fmt::format("{}{}.data: null, and the tensor is not empty", rule.group, rule.name));
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (std::numeric_limits<std::uintptr_t>::max() - begin >= static_cast<std::uintptr_t>(d.bytes)) return {};
  return invalid(
      fmt::format("{}{}.data: {:#x} and the {} bytes of the tensor end beyond 64 bits; look at the address, "
                  "the shape and the strides",
                  rule.group, rule.name, begin, d.bytes));
}

// In the order of strides, each dimension has to step over everything that the smaller ones reach.
Result<void> check_no_overlap(const Dimensions& d, const TensorRule& rule) {
  int order[kMaxTensorRank] = {};
  int count = 0;
  for (int i = 0; i < d.rank; ++i) {
    if (d.size[i] <= 1) continue;
    int at = count++;
    for (; at > 0 && d.stride[order[at - 1]] > d.stride[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  std::int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    const int at = order[i];
    if (d.stride[at] <= reach) {
      return invalid(
          fmt::format("{}{}.strides[{}]: {} makes elements of this output share addresses (smaller dimensions reach {} "
                      "elements); pass a tensor that is not expanded or overlapping",
                      rule.group, rule.name, at, d.stride[at], reach + 1));
    }
    reach += d.stride[at] * (d.size[at] - 1);
  }
  return {};
}

std::int64_t lowest_bit(std::int64_t value) { return value & -value; }

Result<void> check_alignment(const TensorView& tensor, const Dimensions& d, const TensorRule& rule) {
  const std::int64_t element = size_of(rule.dtype);
  const std::int64_t wanted = std::max<std::int64_t>(rule.align_bytes, element);
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data));
  if (address % element != 0) {
    return invalid(fmt::format("{}{}.data: the address is no multiple of {} bytes, the size of {}", rule.group,
                               rule.name, element, name(rule.dtype)));
  }
  std::int64_t bits = address | wanted;
  const int rows = d.rank - rule.contiguous;  // number of dimensions that lead from one row to another
  for (int i = 0; i < rows; ++i) {
    if (d.size[i] > 1) bits |= d.stride[i] * element;
  }
  if (const std::int64_t aligned = lowest_bit(bits); aligned < wanted) {
    const bool pointer = address % wanted != 0;
    const std::string way_out = aligned == 1 ? "no spec takes less than 2: align the tensor and its rows"
                                             : fmt::format("add bytes={} to the spec, or align the tensor", aligned);
    return invalid(fmt::format("{}{}.{}: aligned to {} bytes only, the kernel was made for {}; {}", rule.group,
                               rule.name, pointer ? "data" : "strides", aligned, wanted, way_out));
  }
  return {};
}

Result<void> check_contiguous(const Dimensions& d, const TensorRule& rule) {
  std::int64_t next = 1;
  for (int i = d.rank - 1; i >= d.rank - rule.contiguous; --i) {
    if (d.size[i] > 1 && d.stride[i] != next) {
      const std::string which = rule.contiguous == 1
                                    ? "the last dimension must be contiguous"
                                    : fmt::format("its last {} dimensions have no gaps", rule.contiguous);
      return invalid(fmt::format("{}{}.strides[{}]: {}, {} (stride {}); pass a contiguous copy", rule.group, rule.name,
                                 i, d.stride[i], which, next));
    }
    next *= d.size[i];
  }
  return {};
}

}  // namespace

Result<Dimensions> check_tensor(const TensorView& tensor, const TensorRule& rule) {
  if (!tensor.given()) {
    return invalid(fmt::format("{}{}: missing; this spec needs it, a tensor of {} with {}", rule.group, rule.name,
                               name(rule.dtype), counted(rule.rank, "dimension")));
  }
  const bool is_bytes = rule.any_bytes && tensor.dtype == name(Dtype::E4M3);
  if (tensor.dtype != name(rule.dtype) && !is_bytes) {
    const std::string names = parse_dtype(tensor.dtype) ? "" : fmt::format("dtypes are called {}; ", join(kDtypeNames));
    return invalid(fmt::format("{}{}.dtype: '{}', must be {}; {}convert the tensor or change the spec", rule.group,
                               rule.name, tensor.dtype, name(rule.dtype), names));
  }
  if (tensor.rank != rule.rank) {
    const bool of_each_key = tensor.rank > rule.rank && (rule.name == "scale_k" || rule.name == "scale_v");
    return invalid(fmt::format("{}{}.shape: {} dimensions, must have {}{}", rule.group, rule.name, tensor.rank,
                               rule.rank,
                               of_each_key ? "; keys have scales of their own with token_scales in the spec" : ""));
  }
  FLASHJIT_TRY(check_device(tensor, rule));
  FLASHJIT_ASSIGN(d, read_dimensions(tensor, rule));
  // A tensor without elements is never touched, so its data, strides and alignment mean nothing.
  if (std::find(d.size, d.size + d.rank, 0) != d.size + d.rank) return d;
  d.bytes = (d.reach + 1) * size_of(rule.dtype);
  if (rule.most_bytes > 0 && d.bytes >= rule.most_bytes) {
    return invalid(fmt::format(
        "{}{}.strides: {} bytes from the first to the last element, this kernel reaches less than {}; pass a contiguous "
        "copy, or pin family={} in the schedule",
        rule.group, rule.name, d.bytes, rule.most_bytes, floor_family(true)->name));
  }
  FLASHJIT_TRY(check_address(tensor, d, rule));
  FLASHJIT_TRY(check_contiguous(d, rule));
  if (rule.output) FLASHJIT_TRY(check_no_overlap(d, rule));
  FLASHJIT_TRY(check_alignment(tensor, d, rule));
  return d;
}

Result<void> check_size(const TensorRule& rule, const Dimensions& dimensions, int dimension, std::int64_t wanted,
                        std::string_view meaning) {
  if (dimensions.size[dimension] == wanted) return {};
  return invalid(fmt::format("{}{}.shape[{}]: {}, must be {} ({})", rule.group, rule.name, dimension,
                             dimensions.size[dimension], wanted, meaning));
}

}  // namespace flashjit
