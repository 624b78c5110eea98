#include "tests/random/operations/blocks_generator.h"

#include <algorithm>

#include "compiler/spec/spec.h"
#include "fmt/format.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

struct Blocks {
  std::int64_t batch, heads, rows, columns;
};

Blocks blocks_of(const Case& c, const AttentionSpec& spec) {
  const bool packed = is_packed(spec), bhsd = spec.layout == Layout::Bhsd;
  const std::int64_t batch = packed ? c.offsets_q.shape[0] - 1 : c.q.shape[0];
  const std::int64_t queries = packed ? c.max_q_len : c.q.shape[bhsd ? 2 : 1];
  const std::int64_t keys = is_paged(spec)          ? c.params.at("block_table").shape[1] * spec.page_size
                            : has_packed_keys(spec) ? c.max_k_len
                                                    : c.k.shape[bhsd ? 2 : 1];
  const auto blocks = [](std::int64_t size, int of_block) { return (size + of_block - 1) / of_block; };
  return {batch, spec.blocks.heads, blocks(queries, spec.blocks.q), blocks(keys, spec.blocks.k)};
}

// Numbers that are none of a block, numbers that come twice, and counts beyond the room are among them.
void add_lists(Case& c, const std::string& name, const Blocks& blocks, double share, Random& random) {
  std::vector<std::int64_t> shape = {random.chance(0.2) ? 1 : blocks.batch, random.chance(0.2) ? 1 : blocks.heads,
                                     blocks.rows};
  const auto most = static_cast<std::int64_t>(share * static_cast<double>(blocks.columns)) + random.integer(0, 2);
  const auto lay = [&](CaseTensor& tensor) {
    lay_out(tensor, Dtype::I32, shape, 4, random.chance(0.3) ? 5 : 0, false);
  };
  CaseTensor &count = c.params[name + "_count"], &index = c.params[name + "_index"];
  lay(count);
  shape.push_back(most);
  lay(index);
  const auto put = [](CaseTensor& tensor, std::int64_t offset, std::int64_t value) {
    reinterpret_cast<std::int32_t*>(tensor.data())[offset] = static_cast<std::int32_t>(value);
  };
  each_element(count, [&](const auto&, std::int64_t offset) {
    put(count, offset, random.chance(0.05) ? random.pick({-1, 1000000}) : random.integer(0, most));
  });
  each_element(index, [&](const auto&, std::int64_t offset) {
    const bool is_none = random.chance(0.05) || blocks.columns == 0;
    put(index, offset, is_none ? random.pick({-1, 1 << 30, -(1 << 30)}) : random.integer(0, blocks.columns - 1));
  });
}

Case with_lists(Case c, const AttentionSpec& spec, Random& random) {
  const Blocks blocks = blocks_of(c, spec);
  const double share = random.pick({0.1, 0.5, 1.5});
  add_lists(c, "block", blocks, share, random);
  if (random.chance(0.5)) add_lists(c, "full", blocks, share / 2, random);
  return c;
}

}  // namespace

Case draw_blocks(Case c) {
  Random random(c.seed ^ 0x626c6f636b);
  if (random.chance(0.88)) return c;
  const auto spec_before = parse_spec(c.spec);
  if (!spec_before) return c;
  std::string sizes = fmt::format("{}/{}", random.pick({64, 128, 192}), random.pick({64, 128, 192, 256}));
  if (random.chance(0.4)) sizes += fmt::format("/{}", random.chance(0.5) ? 1 : spec_before->heads_kv);
  const std::string text = fmt::format("{} blocks={}", c.spec, sizes);
  const auto spec = parse_spec(text);
  if (!spec || !check_supported(*spec)) return c;
  c.spec = text;
  return with_lists(std::move(c), *spec, random);
}

Case take_blocks(Case c) {
  Random random(c.seed ^ 0x626c6f636b);
  const AttentionSpec spec = *parse_spec(c.spec);
  return has_blocks(spec) ? with_lists(std::move(c), spec, random) : c;
}

}  // namespace flashjit::testing_random
