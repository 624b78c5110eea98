#include "tests/random/operations/transposed_generator.h"

#include <algorithm>

#include "compiler/spec/spec.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {

Case take_transposed(Case c) {
  const auto spec = parse_spec(c.spec);
  if (!spec->v_transposed) return c;
  const bool packed = is_packed(*spec);
  const std::size_t first = packed ? 0 : 1, token = spec->layout == Layout::Bhsd ? 2 : first;
  const std::size_t heads = packed ? 1 : 3 - token;
  const CaseTensor rows = std::move(c.v);
  std::vector<std::int64_t> shape = {rows.shape[heads], rows.shape.back(), rows.shape[token]};
  if (!packed) shape.insert(shape.begin(), rows.shape[0]);
  const std::int64_t align = spec->align_bytes, gap = (align - rows.shape[token] % align) % align;
  CaseTensor& v = c.v = {};
  lay_out(v, spec->kv_dtype, shape, spec->align_bytes, gap, false);
  std::ranges::fill(v.image, std::uint8_t{0x7f});  // NaN
  each_element(rows, [&](const std::vector<std::int64_t>& index, std::int64_t from) {
    const std::int64_t at = (packed ? 0 : index[0] * v.strides[0]) + index[heads] * v.strides[first] +
                            index.back() * v.strides[first + 1] + index[token];
    v.data()[at] = rows.image[rows.begin + static_cast<std::size_t>(from)];
  });
  return c;
}

Case draw_transposed(Case c) {
  Random random(c.seed ^ 0x76747261);
  const std::string text = c.spec + " v_transposed";
  if (!parse_spec(text) || random.chance(0.7)) return c;
  c.spec = text;
  return take_transposed(std::move(c));
}

}  // namespace flashjit::testing_random
