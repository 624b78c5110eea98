#include "tests/random/lists/table_generator.h"

#include <algorithm>
#include <numeric>

#include "tests/random/lists/ints.h"
#include "tests/random/lists/select_generator.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

constexpr std::uint64_t kTableStream = 0x7461626c6573;

// Pages of a sequence that are full of keys, and into which no call writes.
std::int64_t full_pages(Case& c, const AttentionSpec& spec, std::int64_t b) {
  CaseTensor& lens = c.params.at("k_lens");
  const std::int64_t line = c.params.at("block_table").shape[1];
  const std::int64_t queries = is_packed(spec) ? int_at(c.offsets_q, b + 1) - int_at(c.offsets_q, b) : c.q.shape[1];
  const std::int64_t keys = std::min<std::int64_t>(int_at(lens, b * lens.strides[0]), spec.k_len.max);
  return std::clamp<std::int64_t>((keys - (spec.append ? queries : 0)) / spec.page_size, 0, line);
}

}  // namespace

// Each head has the full pages of its sequence in an order of its own, so that heads which take the pages of others are found.
Case take_head_tables(Case c) {
  Random random(c.seed ^ kTableStream);
  c.spec += " head_tables";
  const AttentionSpec spec = *parse_spec(c.spec);
  CaseTensor table;
  CaseTensor& of_all = c.params.at("block_table");
  const std::int64_t batch = of_all.shape[0], line = of_all.shape[1];
  lay_out(table, Dtype::I32, {batch, spec.heads_kv, line}, 4, random.chance(0.3) ? 3 : 0, false);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t head = 0; head < spec.heads_kv; ++head) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(line));
      std::iota(order.begin(), order.end(), 0);
      for (std::int64_t i = full_pages(c, spec, b); i > 1; --i)
        std::swap(order[static_cast<std::size_t>(i - 1)], order[static_cast<std::size_t>(random.integer(0, i - 1))]);
      for (std::int64_t i = 0; i < line; ++i) {
        int_at(table, b * table.strides[0] + head * table.strides[1] + i * table.strides[2]) =
            int_at(of_all, b * of_all.strides[0] + order[static_cast<std::size_t>(i)] * of_all.strides[1]);
      }
    }
  }
  of_all = std::move(table);
  return c;
}

Case draw_lists(Case drawn, Device device) {
  Case c = draw_selected(std::move(drawn), device);
  Random random(c.seed ^ kTableStream);
  if (!random.chance(0.3) || !c.params.contains("block_table")) return c;
  const auto valid = parse_spec(c.spec + " head_tables");
  return valid && check_supported(*valid) ? take_head_tables(std::move(c)) : c;
}

}  // namespace flashjit::testing_random
