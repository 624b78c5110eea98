#include "tests/random/pairs/pair_case.h"

#include <algorithm>
#include <utility>

#include "compiler/spec/spec.h"
#include "tests/random/lists/select_generator.h"
#include "tests/random/lists/table_generator.h"
#include "tests/random/spec_generator.h"

namespace flashjit::testing_random {
namespace {

using Lengths = std::vector<std::int64_t>;

// The reference takes each query with each key for gradients, and at twenty places for gradients of parameters.
struct Most {
  std::int64_t queries, keys;
};
Most most_of(const AttentionSpec& spec) {
  if (!params_with_gradients(spec).empty()) return {20, 70};
  return is_backward(spec) ? Most{65, 140} : Most{129, 300};
}

// Sequences of packed tokens differ, and one has none. Others have as many queries as are allowed.
Lengths queries_of(const AttentionSpec& spec) {
  const std::int64_t longest = std::min(spec.q_len.max, most_of(spec).queries);
  if (spec.layout != Layout::Packed) return Lengths(3, longest);
  return {longest, 1, 0, std::max<std::int64_t>(longest / 2, 1)};
}

Lengths keys_of(const AttentionSpec& spec, std::size_t sequences) {
  const std::int64_t longest = most_of(spec).keys;
  Lengths lengths = {longest, longest / 2 - 5, 64, 33};
  if (!has_own_k_lens(spec)) lengths.assign(lengths.size(), longest);
  lengths.resize(sequences);
  return lengths;
}

}  // namespace

Case make_pair_case(const std::string& text) {
  AttentionSpec asked = *parse_spec(text);
  const bool by_head = std::exchange(asked.head_tables, false);
  const AttentionSpec spec = selects(asked) ? base_of_selected(asked) : asked;
  constexpr std::int64_t kParts = 3;
  const std::string base = print(spec);
  FixedCase row = {.name = text, .spec = base, .q_lens = queries_of(spec)};
  row.k_lens = merges(spec) ? Lengths{kParts} : keys_of(spec, row.q_lens.size());
  if (merges(spec)) std::ranges::fill(row.q_lens, row.q_lens.front());
  if (selects(asked)) return take_selected(make_case(row), asked);
  return by_head ? take_head_tables(make_case(row)) : make_case(row);
}

}  // namespace flashjit::testing_random
