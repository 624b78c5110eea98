#include "tests/random/lists/select_generator.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "tests/random/lists/ints.h"
#include "tests/random/lists/list_masks.h"
#include "tests/random/lists/page_lists.h"
#include "tests/random/operations/backward_generator.h"
#include "tests/random/random.h"

namespace flashjit::testing_random {
namespace {

constexpr std::uint64_t kStream = 0x73656c656374;

using Rows = std::vector<std::int64_t>;

// The rows of K that hold keys, by their numbers: of each batch index, or of all together where these share them. Others are
// poisoned.
struct KeyRows {
  std::vector<Rows> of;
  std::int64_t count = 0;  // numbers from here on are those of no row
};

std::int64_t keys_of(Case& c, std::int64_t b, std::int64_t room) {
  const auto lens = c.params.find("k_lens");
  if (lens == c.params.end()) return room;
  return std::clamp<std::int64_t>(int_at(lens->second, b * lens->second.strides[0]), 0, room);
}

KeyRows rows_in_pages(Case& c, const AttentionSpec& spec) {
  CaseTensor& table = c.params.at("block_table");
  const std::int64_t page = spec.page_size;
  KeyRows rows{{Rows()}, c.k.shape[0] * page};
  if (rows.count == 0) return rows;
  for (std::int64_t b = 0; b < table.shape[0]; ++b) {
    for (std::int64_t key = 0; key < keys_of(c, b, table.shape[1] * page); ++key) {
      const std::int64_t number = int_at(table, b * table.strides[0] + key / page * table.strides[1]);
      rows.of[0].push_back(number * page + key % page);
    }
  }
  return rows;
}

KeyRows rows_of(Case& c, const AttentionSpec& spec) {
  if (is_paged(spec)) return rows_in_pages(c, spec);
  if (!is_packed(spec)) {
    KeyRows rows{{}, c.k.shape[spec.layout == Layout::Bhsd ? 2 : 1]};
    for (std::int64_t b = 0; b < c.k.shape[0]; ++b) {
      Rows& own = rows.of.emplace_back();
      for (std::int64_t key = 0; key < keys_of(c, b, rows.count); ++key) own.push_back(key);
    }
    return rows;
  }
  KeyRows rows{{Rows()}, c.k.shape[0]};
  for (std::int64_t b = 0; b + 1 < c.offsets_k.shape[0]; ++b) {
    const std::int64_t first = int_at(c.offsets_k, b), room = int_at(c.offsets_k, b + 1) - first;
    for (std::int64_t key = 0; key < keys_of(c, b, room); ++key) rows.of[0].push_back(first + key);
  }
  return rows;
}

// Are all packed queries those of a sequence? Nothing is written for others, and lists have no sequences.
bool has_strays(Case& c) {
  const std::int64_t last = c.offsets_q.shape[0] - 1;
  return int_at(c.offsets_q, 0) != 0 || int_at(c.offsets_q, last) != c.q.shape[0];
}

// [batch, tokens], or of packed ones [tokens].
std::vector<std::int64_t> shape_of_queries(const Case& c, const AttentionSpec& spec) {
  if (spec.layout == Layout::Packed) return {c.q.shape[0]};
  return {c.q.shape[0], c.q.shape[spec.layout == Layout::Bhsd ? 2 : 1]};
}

// Numbers of no row, numbers that come twice, counts beyond the room, and lists of nothing are among them.
void add_lists(Case& c, const AttentionSpec& spec, const KeyRows& rows, Random& random) {
  std::vector<std::int64_t> shape = shape_of_queries(c, spec);
  if (selects_pages(spec)) {
    const HeldPages pages = pages_that_hold(rows.of[0], rows.count / spec.page_size, spec.page_size);
    return add_page_lists(c, spec, std::move(shape), pages, random);
  }
  shape.push_back(spec.heads_kv);
  CaseTensor& index = c.params["key_index"];
  if (random.chance(0.7)) {
    CaseTensor& count = c.params["key_count"];
    lay_out(count, Dtype::I32, shape, 4, random.chance(0.3) ? 3 : 0, false);
    each_element(count, [&](const auto&, std::int64_t offset) {
      const bool is_odd = random.chance(0.2);
      put(count, offset, is_odd ? random.pick({0, -1, 1 << 30, 1}) : random.integer(0, spec.selected));
    });
  }
  shape.push_back(spec.selected);
  lay_out(index, Dtype::I32, shape, 4, random.chance(0.3) ? 5 : 0, false);
  const double none = random.pick({0.0, 0.05, 0.5, 1.0});
  // A row is in a list a few times at most: sums of one number many times round it the same way each time.
  constexpr int kMostTimes = 3;
  std::vector<int> times;
  each_element(index, [&](const std::vector<std::int64_t>& at, std::int64_t offset) {
    const Rows& own = rows.of[rows.of.size() == 1 ? 0 : static_cast<std::size_t>(at[0])];
    if (at.back() == 0) times.assign(own.size(), 0);
    const std::int64_t last = static_cast<std::int64_t>(own.size()) - 1, drawn = last < 0 ? 0 : random.integer(0, last);
    const bool is_none = last < 0 || random.chance(none) || ++times[static_cast<std::size_t>(drawn)] > kMostTimes;
    put(index, offset,
        is_none ? random.pick<std::int64_t>({-1, rows.count, 0x7fffffff, -0x7fffffff - 1})
                : own[static_cast<std::size_t>(drawn)]);
  });
}

// Draws the positions of queries and of listed keys; some numbers are no positions.
void add_positions(Case& c, const AttentionSpec& spec, Random& random) {
  std::vector<std::int64_t> shape = shape_of_queries(c, spec);
  const auto draw = [&](const char* name) {
    CaseTensor& positions = c.params[name];
    lay_out(positions, Dtype::I32, shape, 4, random.chance(0.3) ? 3 : 0, false);
    each_element(positions, [&](const auto&, std::int64_t offset) {
      const bool is_none = random.chance(0.05);
      put(positions, offset,
          is_none ? random.pick<std::int64_t>({-1, -0x7fffffff - 1, 0x7fffffff, (1 << 30) - 1})
                  : random.integer(0, 200));
    });
  };
  draw("q_positions");
  shape.insert(shape.end(), {spec.heads_kv, spec.selected});
  draw("k_positions");
}

// Packed queries are of no sequence, which had a scale of its own.
void share_scales(Case& c, const AttentionSpec& spec) {
  if (spec.layout != Layout::Packed) return;
  for (const std::string name : {"scale_q", "scale_k", "scale_v"}) {
    const auto found = c.params.find(name);
    if (found == c.params.end()) continue;
    CaseTensor& scale = found->second;
    const bool of_rows = name != "scale_q" && (spec.token_scales || (spec.scale_block > 0 && is_paged(spec)));
    if (!of_rows && scale.shape.size() > 1) scale.shape = scale.strides = {1};
  }
}

// Packed tokens are one sequence beside lists, so that the documents of a mask go on to the last of them.
void lengthen_documents(Case& c, const AttentionSpec& spec) {
  constexpr std::int64_t kOfDocument = 50;
  for (const Param& param : params_of(spec.list_mask)) {
    if (param.rank != 2) continue;
    plain(c.params.at(param.name), param.dtype, {1, c.q.shape[0] + c.k.shape[0]},
          [](std::int64_t i) { return static_cast<double>(i / kOfDocument); });
  }
}

Case with_lists(Case c, const AttentionSpec& before, const AttentionSpec& spec, const ListMask& mask, Random& random) {
  const KeyRows rows = rows_of(c, before);
  for (const Param& param : before.params) {
    if (std::ranges::find(spec.params, param) != spec.params.end()) continue;
    c.params.erase(param.name);
    c.scalars.erase(param.name);
  }
  c.params.erase("k_lens");
  c.params.erase("block_table");
  c.offsets_q = c.offsets_k = {};
  c.max_q_len = c.max_k_len = 0;
  c.semantics.visible = {};
  c.semantics.unseen_from = spec.list_mask ? 0 : reference::Semantics().unseen_from;  // what a mask hides is not read
  if (!spec.score) c.semantics.score = {};
  if (mask.visible) {
    c.semantics.visible = mask.visible;
    c.params.insert(mask.tensors.begin(), mask.tensors.end());
  } else if (spec.list_mask) {
    c.independent = false;
  }
  share_scales(c, spec);
  add_lists(c, spec, rows, random);
  if (reads_positions(spec)) add_positions(c, spec, random);
  c.spec = print(spec);
  if (!is_backward(spec)) return c;
  for (const char* name : {"dq", "dk", "dv"}) {
    const auto rows = c.params.find(name);
    if (rows != c.params.end()) rows->second.stray_front = rows->second.stray_back = 0;
  }
  set_results_of_forward(c, spec, random);
  return c;
}

}  // namespace

AttentionSpec base_of_selected(const AttentionSpec& spec) {
  AttentionSpec base = spec;
  base.selected = 0;
  base.whole_pages = false;
  return *parse_spec(print(base));
}

Case draw_selected(Case c, Device device) {
  Random random(c.seed ^ kStream);
  if (random.chance(c.spec.starts_with("bwd ") ? 0.75 : 0.88)) return c;
  const auto before = parse_spec(c.spec);
  if (!before || (is_packed(*before) && has_strays(c))) return c;
  // Beside lists, kernels of GPUs have no gradients of parameters.
  if (device == Device::Gpu && !params_with_gradients(*before).empty()) return c;
  AttentionSpec spec = *before;
  spec.selected = random.pick({1, 7, 16, 33, 64, 100, 130, 257});
  spec.whole_pages = is_paged(spec) && random.chance(0.5);
  if (spec.whole_pages) spec.selected = random.pick({1, 2, 3, 5, 9});
  spec.mask = Expr();
  spec.mask_text.clear();
  spec.batch = spec.q_len = spec.k_len = {};
  spec.k_lens = false;
  if (spec.score && (uses(spec.score, Variable::K) || uses(spec.score, Variable::Q) || uses(spec.score, Variable::B) ||
                     uses(spec.score, Variable::KLen) || uses(spec.score, Variable::QLen))) {
    spec.score = Expr();
    spec.score_text.clear();
  }
  const std::vector<Param> read = spec.score ? params_of(spec.score) : std::vector<Param>();
  std::erase_if(spec.declared, [&](const Param& param) { return std::ranges::count(read, param) == 0; });
  const ListMask mask = draw_list_mask(c, spec);
  spec.mask_text = mask.text;
  auto valid = parse_spec(print(spec));
  if (!valid || !check_supported(*valid)) return c;
  return with_lists(std::move(c), *before, *valid, mask, random);
}

Case take_selected(Case c, const AttentionSpec& spec) {
  Random random(c.seed ^ kStream);
  const AttentionSpec before = *parse_spec(c.spec);
  if (spec.list_mask && spec.layout == Layout::Packed) lengthen_documents(c, spec);
  return with_lists(std::move(c), before, spec, {}, random);
}

}  // namespace flashjit::testing_random
