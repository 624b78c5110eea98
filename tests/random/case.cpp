#include "tests/random/case.h"

#include <algorithm>
#include <cstring>

#include "compiler/spec/half.h"

namespace flashjit::testing_random {
namespace {

std::size_t element_bytes(const CaseTensor& tensor) { return size_of(*parse_dtype(tensor.dtype)); }

// Offsets of the elements of sequences, in row-major order of the index.
template <class F>
void each_offset(const CaseTensor& tensor, F visit) {
  if (tensor.elements() == 0) return;
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  while (true) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < index.size(); ++i) offset += index[i] * tensor.strides[i];
    const std::int64_t token = index[tensor.token_axis];
    if (token >= tensor.stray_front && token < tensor.shape[tensor.token_axis] - tensor.stray_back) visit(offset);
    std::size_t i = index.size();
    while (i > 0 && ++index[i - 1] == tensor.shape[i - 1]) index[--i] = 0;
    if (i == 0) return;
  }
}

Tensor at_place(const CaseTensor& tensor, void* image) {
  if (!tensor.given) return {};
  return {static_cast<std::uint8_t*>(image) + tensor.begin, tensor.dtype, tensor.shape, tensor.strides};
}

}  // namespace

std::int64_t CaseTensor::elements() const {
  std::int64_t count = 1;
  for (std::int64_t size : shape) count *= size;
  return count;
}

void allocate(CaseTensor& tensor, int align, bool output) {
  std::int64_t extent = 0;
  if (tensor.elements() > 0) {
    extent = 1;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) extent += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  tensor.given = true;
  tensor.output = output;
  const std::size_t guard = output ? kGuardBytes : 0;
  tensor.begin = guard + (align < 16 ? align : 0);
  tensor.image.assign(tensor.begin + extent * element_bytes(tensor) + guard, 0xff);
}

void draw_strides(CaseTensor& tensor, Dtype dtype, std::vector<std::int64_t> shape, const StrideRules& rules,
                  Random& random) {
  tensor.dtype = flashjit::name(dtype);
  tensor.shape = std::move(shape);
  const std::int64_t dim = tensor.shape.back();
  const std::size_t rank = tensor.shape.size();
  const std::int64_t unit = std::max(1, rules.align / size_of(dtype));  // strides are multiples of this many elements
  bool gaps = rules.align < 16 || random.chance(0.3);
  if (dim % unit != 0) gaps = true;
  std::vector<std::size_t> order;  // from the innermost outwards
  for (std::size_t i = rank - 1; i-- > 0;) order.push_back(i);
  if (rules.any_order && random.chance(0.3)) std::swap(order[0], order[1]);
  tensor.strides.assign(rank, 1);
  std::int64_t next = dim;
  for (std::size_t i : order) {
    // An odd number of units: the stride is a multiple of the alignment and of nothing larger.
    if (gaps) next = (next + unit - 1) / unit * unit + unit * (next / unit % 2 == 0 ? 1 : random.pick({0, 2}));
    if (i == 0) next += rules.more_between;
    tensor.strides[i] = next;
    next *= std::max<std::int64_t>(1, tensor.shape[i]);
  }
}

void lay_out(CaseTensor& tensor, Dtype dtype, std::vector<std::int64_t> shape, int align, std::int64_t gap,
             bool output) {
  tensor.dtype = name(dtype);
  tensor.strides.assign(shape.size(), 1);
  for (std::size_t i = shape.size() - 1; i-- > 0;) {
    const bool of_row = i + 2 == shape.size();
    tensor.strides[i] = tensor.strides[i + 1] * std::max<std::int64_t>(1, shape[i + 1]) + (of_row ? gap : 0);
  }
  tensor.shape = std::move(shape);
  allocate(tensor, std::max(align, size_of(dtype)), output);
}

void each_element(const CaseTensor& tensor,
                  const std::function<void(const std::vector<std::int64_t>& index, std::int64_t offset)>& visit) {
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    std::int64_t offset = 0, rest = i;
    for (std::size_t axis = index.size(); axis-- > 0;) {
      index[axis] = rest % tensor.shape[axis];
      rest /= tensor.shape[axis];
      offset += index[axis] * tensor.strides[axis];
    }
    visit(index, offset);
  }
}

void plain(CaseTensor& tensor, Dtype dtype, std::vector<std::int64_t> shape,
           const std::function<double(std::int64_t i)>& value, int align) {
  tensor.dtype = flashjit::name(dtype);
  tensor.strides.assign(shape.size(), 1);
  for (std::size_t i = shape.size() - 1; i-- > 0;)
    tensor.strides[i] = tensor.strides[i + 1] * std::max<std::int64_t>(1, shape[i + 1]);
  tensor.shape = std::move(shape);
  allocate(tensor, std::max(align, size_of(dtype)), false);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double x = value(i);
    std::uint8_t* at = tensor.data() + i * size_of(dtype);
    const auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
    switch (dtype) {
      case Dtype::I32: put(static_cast<std::int32_t>(x)); break;
      case Dtype::U32: put(static_cast<std::uint32_t>(x)); break;
      case Dtype::I64: put(static_cast<std::int64_t>(x)); break;
      case Dtype::U8: put(static_cast<std::uint8_t>(x)); break;
      default: store_float(dtype, at, 0, static_cast<float>(x));
    }
  }
}

// Plain loops over bytes: tests are compiled with little optimisation, and images have millions of them.
std::int64_t first_damaged_byte(const CaseTensor& tensor) {
  if (!tensor.given || !tensor.output) return -1;
  const std::size_t width = element_bytes(tensor);
  std::vector<std::uint8_t> rest = tensor.image;
  each_offset(tensor,
              [&](std::int64_t offset) { std::memset(rest.data() + tensor.begin + offset * width, 0xff, width); });
  const std::uint8_t* const bytes = rest.data();
  for (std::size_t i = 0, size = rest.size(); i < size; ++i) {
    if (bytes[i] != 0xff) return static_cast<std::int64_t>(i);
  }
  return -1;
}

std::int64_t first_changed_byte(const CaseTensor& tensor, const std::vector<std::uint8_t>& before) {
  const std::int64_t elements = tensor.new_row_elements > 0 ? tensor.new_row_elements : tensor.shape.back();
  const std::size_t row_bytes = static_cast<std::size_t>(elements) * element_bytes(tensor);
  std::vector<std::uint8_t> rest = tensor.image;
  for (const std::int64_t row : tensor.new_rows) {
    const std::size_t begin = tensor.begin + row * element_bytes(tensor);
    std::memcpy(rest.data() + begin, before.data() + begin, row_bytes);
  }
  const std::uint8_t *const bytes = rest.data(), *const expected = before.data();
  for (std::size_t i = 0, size = rest.size(); i < size; ++i) {
    if (bytes[i] != expected[i]) return static_cast<std::int64_t>(i);
  }
  return -1;
}

void Case::each(const std::function<void(const std::string& name, CaseTensor& tensor)>& visit) {
  const std::pair<const char*, CaseTensor*> fixed[] = {{"q", &q},
                                                       {"k", &k},
                                                       {"v", &v},
                                                       {"o", &o},
                                                       {"lse", &lse},
                                                       {"max_logit", &max_logit},
                                                       {"sink", &sink},
                                                       {"offsets_q", &offsets_q},
                                                       {"offsets_k", &offsets_k}};
  for (const auto& [name, tensor] : fixed) {
    if (tensor->given) visit(name, *tensor);
  }
  for (auto& [name, tensor] : params) visit(name, tensor);
}

Arguments Case::arguments(const std::function<void*(const CaseTensor&)>& place) const {
  const auto put = [&](const CaseTensor& tensor) { return tensor.given ? at_place(tensor, place(tensor)) : Tensor{}; };
  Arguments result;
  result.q = put(q), result.k = put(k), result.v = put(v), result.o = put(o);
  result.lse = put(lse), result.max_logit = put(max_logit), result.sink = put(sink);
  result.offsets_q = put(offsets_q), result.offsets_k = put(offsets_k);
  result.max_q_len = max_q_len, result.max_k_len = max_k_len;
  for (const auto& [name, tensor] : params) result.params[name] = put(tensor);
  for (const auto& [name, value] : scalars) result.scalars[name] = value;
  return result;
}

Arguments Case::host_arguments() const {
  return arguments([](const CaseTensor& tensor) { return const_cast<std::uint8_t*>(tensor.image.data()); });
}

}  // namespace flashjit::testing_random
