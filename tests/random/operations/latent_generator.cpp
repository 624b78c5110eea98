#include "tests/random/operations/latent_generator.h"

#include <algorithm>

#include "autotune/reference/caches/latents.h"
#include "compiler/spec/half.h"
#include "compiler/spec/spec.h"
#include "fmt/format.h"
#include "templates/latents/rows.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

// In pages of latent584 nothing lies between tokens; else rows lie apart by `gap` bytes. Pages do in any case.
void lay_out_rows(CaseTensor& k, const AttentionSpec& spec, std::vector<std::int64_t> shape, std::int64_t gap) {
  const LatentRows rows = latent_rows(spec.cache_format);
  shape.back() = rows.row_bytes;
  lay_out(k, Dtype::U8, shape, spec.align_bytes, rows.scales_behind_page ? 0 : gap, false);
  if (!rows.scales_behind_page) return;
  const std::int64_t align = spec.align_bytes, page = spec.page_size * std::int64_t{rows.row_bytes};
  k.strides[0] = (page + align - 1) / align * align + gap;
  allocate(k, spec.align_bytes, false);
}

}  // namespace

Case take_latent_rows(Case c) {
  const auto spec = parse_spec(c.spec);
  if (!has_latent_rows(*spec)) return c;
  Random random(c.seed ^ 0x6c6174656e74);
  const CaseTensor numbers = std::move(c.k);
  CaseTensor& k = c.k = {};
  lay_out_rows(k, *spec, numbers.shape, spec->align_bytes * random.pick<std::int64_t>({0, 0, 1, 3}));
  k.dtype = random.pick({"u8", "e4m3"});
  k.updated = numbers.updated;
  // Rows that calls write are two pieces, which are multiples of this.
  constexpr std::int64_t kPiece = 8;
  k.new_row_elements = kPiece;
  const std::size_t token_axis = spec->layout == Layout::Bhsd && !is_paged(*spec) ? 2 : has_packed_keys(*spec) ? 0 : 1;
  std::vector<float> row;
  each_element(numbers, [&](const std::vector<std::int64_t>& index, std::int64_t from) {
    row.push_back(load_float(Dtype::BF16, numbers.image.data() + numbers.begin, from));
    if (index.back() + 1 < numbers.shape.back()) return;
    std::int64_t begin = 0;
    for (std::size_t axis = 0; axis + 1 < index.size(); ++axis)
      begin += axis == token_axis ? 0 : index[axis] * k.strides[axis];
    const reference::LatentRow place =
        reference::latent_row(*spec, k.data() + begin, index[token_axis], k.strides[token_axis]);
    reference::store_latents(*spec, place, row.data());
    row.clear();
    if (std::ranges::count(numbers.new_rows, from - index.back()) == 0) return;
    const LatentRows format = latent_rows(spec->cache_format);
    for (std::int64_t i = 0; i < format.data_bytes; i += kPiece) k.new_rows.push_back(place.data - k.data() + i);
    for (std::int64_t i = 0; i < format.scale_bytes; i += kPiece) k.new_rows.push_back(place.scales - k.data() + i);
  });
  return c;
}

Case draw_latent_rows(Case c) {
  Random random(c.seed ^ 0x726f7773);
  if (random.chance(0.3)) return c;
  for (const char* format : {"latent656", "latent584"}) {
    const std::string text = c.spec + " kv=" + format;
    if (!parse_spec(text)) continue;
    c.spec = text;
    return take_latent_rows(std::move(c));
  }
  return c;
}

}  // namespace flashjit::testing_random
