#include "tests/random/lists/list_masks.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

using reference::Position;

constexpr std::uint64_t kMaskStream = 0x6d61736b6c697374;

std::vector<std::int64_t> drawn_ints(Random& random, std::int64_t count, std::int64_t lo, std::int64_t hi) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (std::int64_t& value : values) value = random.integer(lo, hi);
  return values;
}

// A tensor of ints that a mask reads. It ends where its last element does, so that no other number may be an index.
void declare_ints(ListMask& mask, AttentionSpec& spec, const Param& param, std::vector<std::int64_t> shape,
                  const std::vector<std::int64_t>& values) {
  spec.declared.push_back(param);
  plain(mask.tensors[param.name], param.dtype, std::move(shape),
        [&](std::int64_t i) { return static_cast<double>(values[static_cast<std::size_t>(i)]); });
}

ListMask mask_of_keys(std::int64_t keys, AttentionSpec& spec, Random& random) {
  const std::vector<std::int64_t> colours = drawn_ints(random, keys, 0, 3);
  ListMask mask{"list_colours[k] != 1", [colours](const Position& at) { return colours[at.k] != 1; }, {}};
  declare_ints(mask, spec, {.name = "list_colours", .dtype = Dtype::U8, .rank = 1}, {keys}, colours);
  return mask;
}

ListMask mask_of_queries(std::int64_t batch, std::int64_t queries, std::int64_t keys, AttentionSpec& spec,
                         Random& random) {
  const std::vector<std::int64_t> starts = drawn_ints(random, batch * queries, -2, keys);
  ListMask mask{"k >= list_starts[b, q] & k != q",
                [starts, queries](const Position& at) { return at.k >= starts[at.b * queries + at.q] && at.k != at.q; },
                {}};
  declare_ints(mask, spec, {.name = "list_starts", .dtype = Dtype::I32, .rank = 2}, {batch, queries}, starts);
  return mask;
}

// In a pool positions are what a call gives, and a sequence is as long as the query has come.
ListMask mask_of_positions(const AttentionSpec& spec, Random& random) {
  const bool is_alone = spec.heads_q == spec.heads_kv;
  switch (random.integer(0, is_alone ? 5 : 4)) {
    case 0: return {"causal", [](const Position& at) { return at.k <= at.q; }, {}};
    case 1: return {"window(70, 0)", [](const Position& at) { return at.k <= at.q && at.k >= at.q - 70; }, {}};
    case 2: return {"k % 3 != hk % 3", [](const Position& at) { return at.k % 3 != at.hk % 3; }, {}};
    case 3:
      return {"(k < k_len / 2 | k == q_len) & b + k != 7",
              [](const Position& at) { return (at.k < (at.q + 1) / 2 || at.k == at.q + 1) && at.b + at.k != 7; },
              {}};
    case 4: return {"false", [](const Position&) { return false; }, {}};
    default: return {"(h + k) % 3 != 0", [](const Position& at) { return (at.h + at.k) % 3 != 0; }, {}};
  }
}

}  // namespace

ListMask draw_list_mask(const Case& c, AttentionSpec& spec) {
  Random random(c.seed ^ kMaskStream);
  if (random.chance(0.4)) return {};
  if (is_paged(spec)) return mask_of_positions(spec, random);
  const bool is_packed = spec.layout == Layout::Packed, bhsd = spec.layout == Layout::Bhsd;
  const std::size_t tokens = is_packed ? 0 : bhsd ? 2 : 1;
  const std::int64_t batch = is_packed ? 1 : c.q.shape[0], queries = c.q.shape[tokens], keys = c.k.shape[tokens];
  const std::int64_t from_end = spec.alignment == Alignment::BottomRight ? 1 : 0;
  switch (random.integer(0, 6)) {
    case 0:
    case 1: return {"causal", [=](const Position& at) { return at.k <= at.q + from_end * (at.k_len - at.q_len); }, {}};
    case 2: return {"k % 3 != hk % 3", [](const Position& at) { return at.k % 3 != at.hk % 3; }, {}};
    case 3:
      return {"(k <= q + 5 | k < k_len / 2) & b + k != 7",
              [](const Position& at) { return (at.k <= at.q + 5 || at.k < at.k_len / 2) && at.b + at.k != 7; },
              {}};
    case 4:
      if (spec.heads_q != spec.heads_kv) return {"false", [](const Position&) { return false; }, {}};
      return {"(h + k) % 3 != 0", [](const Position& at) { return (at.h + at.k) % 3 != 0; }, {}};
    case 5:
      if (keys > 0) return mask_of_keys(keys, spec, random);
      return {};
    default:
      if (batch * queries > 0) return mask_of_queries(batch, queries, keys, spec, random);
      return {};
  }
}

}  // namespace flashjit::testing_random
