#include "tests/random/operations/prefix_generator.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "compiler/spec/fields/shared_prefix.h"
#include "fmt/format.h"

namespace flashjit::testing_random {
namespace {

std::int32_t get(CaseTensor& tensor, std::int64_t at) {
  std::int32_t value = 0;
  std::memcpy(&value, tensor.data() + at * 4, sizeof value);
  return value;
}

std::int64_t sequences(Case& c) { return c.params["k_lens"].shape[0]; }

std::int64_t queries(Case& c, const AttentionSpec& spec, std::int64_t b) {
  if (!is_packed(spec)) return c.q.shape[1];
  return get(c.offsets_q, b + 1) - get(c.offsets_q, b);
}

// Keys of a sequence that are there before the call, and are none of its queries' where new ones are appended.
std::int64_t old_keys(Case& c, const AttentionSpec& spec, std::int64_t b) {
  const std::int64_t room = c.params["block_table"].shape[1] * spec.page_size;
  const std::int64_t keys = std::clamp<std::int64_t>(get(c.params["k_lens"], b), 0, std::min(room, spec.k_len.max));
  return std::max<std::int64_t>(keys - (spec.append ? queries(c, spec, b) : 0), 0);
}

std::int64_t whole_pages(Case& c, const AttentionSpec& spec) {
  return sequences(c) > 0 ? old_keys(c, spec, 0) / spec.page_size : 0;
}

// All sequences that have them begin with so many pages of sequence 0; how many keys those hold.
std::int64_t share_pages(Case& c, const AttentionSpec& spec, std::int64_t pages) {
  CaseTensor& table = c.params["block_table"];
  for (std::int64_t b = 1; b < table.shape[0]; ++b) {
    const std::int64_t own = old_keys(c, spec, b);
    const std::int64_t has = spec.append ? own / spec.page_size : (own + spec.page_size - 1) / spec.page_size;
    for (std::int64_t i = 0; i < std::min(pages, has); ++i) {
      const std::int32_t page = get(table, i * table.strides[1]);
      std::memcpy(table.data() + (b * table.strides[0] + i * table.strides[1]) * 4, &page, sizeof page);
    }
  }
  return pages * spec.page_size;
}

// Pages that are written to are not shared, so a sequence that appends shares whole ones.
void promise(Case& c, const AttentionSpec& spec, std::int64_t prefix) {
  if (spec.append && prefix > 0) prefix = prefix / spec.page_size * spec.page_size;
  plain(c.params["shared_prefix"], Dtype::I32, {1}, [&](std::int64_t) { return static_cast<double>(prefix); });
  c.shape += fmt::format(" shared_prefix={}", prefix);
}

// Scales of each sequence are refused.
bool can_share(const Case& c) {
  return std::ranges::none_of(std::array{"scale_q", "scale_k", "scale_v"}, [&](const char* name) {
    const auto scale = c.params.find(name);
    return scale != c.params.end() && scale->second.shape.size() == 2 && scale->second.shape[0] > 1;
  });
}

// Where the queries of all sequences are read as those of one, their tokens have one stride.
void pack_queries(Case& c, const AttentionSpec& spec) {
  if (!why_read_by_each(spec).empty()) return;
  const CaseTensor& from = c.q;
  const std::int64_t element = size_of(spec.dtype), bytes = from.shape[3] * element, align = spec.align_bytes;
  const std::int64_t row = (bytes + align - 1) / align * align / element;
  CaseTensor to;
  to.dtype = from.dtype;
  to.shape = from.shape;
  to.strides = {from.shape[1] * from.shape[2] * row, from.shape[2] * row, row, 1};
  allocate(to, std::max(spec.align_bytes, size_of(spec.dtype)), false);
  const auto rows = from.shape[0] * from.shape[1] * from.shape[2];
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t h = i % from.shape[2], q = i / from.shape[2] % from.shape[1],
                       b = i / from.shape[2] / from.shape[1];
    const std::int64_t at = b * from.strides[0] + q * from.strides[1] + h * from.strides[2];
    std::memcpy(to.data() + i * row * element, from.image.data() + from.begin + at * element,
                static_cast<std::size_t>(bytes));
  }
  c.q = std::move(to);
}

}  // namespace

Case draw_shared_prefix(Case c) {
  Random random(c.seed ^ 0x70726566);
  const auto without = parse_spec(c.spec);
  if (!without || !is_paged(*without)) return c;
  if (!can_share(c) || random.chance(0.3)) return c;
  const std::string with = c.spec + " shared_prefix";
  const auto spec = parse_spec(with);
  if (!spec) return c;
  c.spec = with;
  pack_queries(c, *spec);
  c.any_schedule = false;  // pins are those of its parts
  const std::int64_t same = share_pages(c, *spec, random.integer(0, whole_pages(c, *spec)));
  // Now and then one that nobody can keep: none shares anything.
  if (random.chance(0.1)) promise(c, *spec, random.pick<std::int64_t>({-1, 1 << 30, -(1 << 30)}));
  else promise(c, *spec, random.chance(0.3) ? same : random.integer(0, same));
  return c;
}

Case take_shared_prefix(Case c) {
  const auto spec = parse_spec(c.spec);
  if (!spec->shared_prefix) return c;
  pack_queries(c, *spec);
  c.params.erase("scale_q");  // there may be one for each sequence
  if (!has_key_scales(*spec)) {
    for (const char* name : {"scale_k", "scale_v"}) c.params.erase(name);
  }
  promise(c, *spec, std::max<std::int64_t>(share_pages(c, *spec, whole_pages(c, *spec)) - 1, 0));
  return c;
}

}  // namespace flashjit::testing_random
