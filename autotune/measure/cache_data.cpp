#include "autotune/measure/cache_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "autotune/measure/latent_data.h"

namespace flashjit {
namespace {

std::int64_t pages_of(const AttentionSpec& spec, std::int64_t keys) {
  return (keys + spec.page_size - 1) / spec.page_size;
}

std::int32_t int_at(const NamedTensor& tensor, std::int64_t i) {
  std::int32_t value = 0;
  std::memcpy(&value, tensor.bytes.data() + static_cast<std::size_t>(i) * sizeof value, sizeof value);
  return value;
}

// Sets all bits of the rows that are not used. `used` has the rows in the order in which they lie.
void poison_others(NamedTensor& tensor, const AttentionSpec& spec, const std::vector<bool>& used) {
  const auto row_bytes = static_cast<std::size_t>(tensor.shape.back() * size_of(tensor.dtype));
  for (std::size_t row = 0; row < used.size(); ++row) {
    if (used[row]) continue;
    if (has_latent_rows(spec)) poison_latent(tensor, spec, static_cast<std::int64_t>(row));
    else std::memset(tensor.bytes.data() + row * row_bytes, 0xff, row_bytes);
  }
}

}  // namespace

std::int64_t drawn_pages(const AttentionSpec& spec, const ProblemShape& shape) {
  std::int64_t pages = 1;
  for (const std::int64_t keys : shape.k) pages += pages_of(spec, keys);
  return pages;
}

std::int32_t drawn_prefix(const AttentionSpec& spec, const ProblemShape& shape) {
  if (shape.k.empty() || spec.page_size == 0) return 0;
  const std::int64_t keys = *std::ranges::min_element(shape.k) - (spec.append ? shape.longest_q() : 0);
  return static_cast<std::int32_t>(std::max<std::int64_t>(keys, 0) / 2 / spec.page_size * spec.page_size);
}

void set_ints(NamedTensor& tensor, const std::vector<std::int32_t>& values) {
  tensor.bytes.resize(values.size() * sizeof values[0]);
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
}

void set_number(NamedTensor& tensor, std::int64_t value) {
  tensor.bytes.resize(sizeof value);
  std::memcpy(tensor.bytes.data(), &value, sizeof value);
}

void set_lengths(NamedTensor& k_lens, const ProblemShape& shape) { set_ints(k_lens, {shape.k.begin(), shape.k.end()}); }

void set_blocks(NamedTensor& tensor, const ProblemShape& shape, const AttentionSpec& spec, std::uint64_t seed) {
  const auto blocks = static_cast<std::int32_t>((shape.longest_k() + spec.blocks.k - 1) / spec.blocks.k);
  const std::int32_t listed = std::min(1 + blocks / 8, blocks), full = std::min((blocks + 6) / 8, blocks - listed);
  const bool of_full = tensor.name.starts_with("full"), is_index = tensor.shape.size() == 4;
  const std::int64_t rows = tensor.shape[0] * tensor.shape[1] * tensor.shape[2];
  if (!is_index)
    return set_ints(tensor, std::vector<std::int32_t>(static_cast<std::size_t>(rows), of_full ? full : listed));
  std::vector<std::int32_t> values, order(static_cast<std::size_t>(blocks));
  for (std::int64_t row = 0; row < rows; ++row) {
    // Both lists of a row are slices of one order, so no block is in both.
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(row));
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    if (of_full) std::rotate(order.begin(), order.begin() + listed, order.end());
    values.insert(values.end(), order.begin(), order.end());
  }
  set_ints(tensor, values);
}

void set_scales(NamedTensor& scales, const AttentionSpec& spec) {
  const float unit = is_float(spec.kv_dtype) ? 1.0f : 0x1p-6f;
  auto* values = reinterpret_cast<float*>(scales.bytes.data());
  for (std::size_t i = 0; i < scales.bytes.size() / sizeof(float); ++i) values[i] = unit * std::exp2(values[i] / 4);
}

void set_angles(NamedTensor& table) {
  constexpr double kBase = 10000;
  const std::int64_t pairs = table.shape[1];
  auto* values = reinterpret_cast<float*>(table.bytes.data());
  for (std::int64_t i = 0; i < table.shape[0] * pairs; ++i) {
    const double angle =
        static_cast<double>(i / pairs) * std::pow(kBase, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
    values[i] = static_cast<float>(table.name == "cos" ? std::cos(angle) : std::sin(angle));
  }
}

void set_table(NamedTensor& block_table, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(drawn_pages(spec, shape)));
  std::iota(pages.begin(), pages.end(), 0);
  std::mt19937_64 random(seed);
  const std::int64_t line = block_table.shape.back(), heads = has_head_tables(spec) ? spec.heads_kv : 1;
  std::vector<std::int32_t> table(static_cast<std::size_t>(block_table.shape[0] * heads * line), -1);
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random() % i]);
    auto next = pages.begin();
    for (std::size_t b = 0; b < shape.k.size(); ++b) {
      const std::int64_t used = pages_of(spec, shape.k[b]);
      std::copy(next, next + used, table.begin() + (static_cast<std::int64_t>(b) * heads + head) * line);
      next += used;
    }
  }
  const std::int64_t shared = spec.shared_prefix ? drawn_prefix(spec, shape) / spec.page_size : 0;
  for (std::size_t b = 1; b < shape.k.size(); ++b)
    std::copy(table.begin(), table.begin() + shared, table.begin() + static_cast<std::int64_t>(b) * line);
  set_ints(block_table, table);
}

namespace {

// These rows of K hold the keys of a sequence, if keys follow each other, one sequence after the other.
struct RowRange {
  std::int64_t first = 0, count = 0;
};
RowRange rows_of_sequence(const AttentionSpec& spec, const ProblemShape& shape, std::int64_t b) {
  const auto own = static_cast<std::size_t>(b);
  RowRange rows{0, shape.k[own]};
  if (!is_paged(spec) && spec.layout != Layout::Packed) return rows;  // Each sequence has its own row 0.
  for (std::size_t i = 0; i < own; ++i)
    rows.first += is_paged(spec) ? pages_of(spec, shape.k[i]) * spec.page_size : shape.k[i];
  return rows;
}

// Calls visit(rows, entry) for the entries of all lists. An entry is counted among those of its sequence, and is -1
// behind the last.
template <class Visit>
void draw_entries(const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed, const Visit& visit) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const RowRange rows = rows_of_sequence(spec, shape, b);
    const std::int64_t of_entry = selects_pages(spec) ? spec.page_size : 1;
    const std::int64_t count = (rows.count + of_entry - 1) / of_entry;
    const std::int64_t lists = shape.q[static_cast<std::size_t>(b)] * spec.heads_kv;
    for (std::int64_t list = 0; list < lists; ++list) {
      // If the length of the steps has no factor in common with the number of entries, the steps meet each entry once.
      std::int64_t step = count > 0 ? 1 + below(count) : 1;
      while (std::gcd(step, count) != 1) ++step;
      std::int64_t at = count > 0 ? below(count) : 0;
      for (int i = 0; i < spec.selected; ++i, at = (at + step) % std::max<std::int64_t>(count, 1))
        visit(rows, i < count ? at : -1);
    }
  }
}

}  // namespace

// The entries of a list are the numbers of rows, or of pages.
void set_chosen(NamedTensor& index, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed) {
  const std::int64_t of_entry = selects_pages(spec) ? spec.page_size : 1;
  std::vector<std::int32_t> values;
  draw_entries(spec, shape, seed, [&](const RowRange& rows, std::int64_t entry) {
    values.push_back(static_cast<std::int32_t>(entry < 0 ? entry : rows.first / of_entry + entry));
  });
  set_ints(index, values);
}

void set_positions(NamedTensor& positions, const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed) {
  std::vector<std::int32_t> values;
  if (positions.name == "k_positions") {
    const std::int64_t of_entry = selects_pages(spec) ? spec.page_size : 1;
    draw_entries(spec, shape, seed, [&](const RowRange&, std::int64_t entry) {
      values.push_back(static_cast<std::int32_t>(entry < 0 ? entry : entry * of_entry));
    });
    return set_ints(positions, values);
  }
  for (std::size_t b = 0; b < shape.q.size(); ++b) {
    const std::int64_t first = std::max<std::int64_t>(shape.k[b] - shape.q[b], 0);
    for (std::int64_t q = 0; q < shape.q[b]; ++q) values.push_back(static_cast<std::int32_t>(first + q));
  }
  set_ints(positions, values);
}

RowLocator::RowLocator(const AttentionSpec& spec, const NamedTensor& k, const NamedTensor* k_lens,
                       const NamedTensor* block_table)
    : k_lens_(k_lens),
      table_(block_table),
      page_size_(spec.page_size),
      table_heads_(has_head_tables(spec) ? spec.heads_kv : 1) {
  if (k.shape.size() != 4) return;  // Packed sequences lie where their offsets say.
  const std::int64_t d = k.shape[3];
  const bool heads_first = spec.layout == Layout::Bhsd;
  const std::int64_t tokens = k.shape[heads_first ? 2 : 1], heads = k.shape[heads_first ? 1 : 2];
  batch_ = tokens * heads * d;
  head_ = heads_first ? tokens * d : d;
  token_ = heads_first ? d : heads * d;
  room_ = block_table ? block_table->shape.back() * page_size_ : tokens;
}

std::int64_t RowLocator::length(std::int64_t b) const {
  return k_lens_ ? std::clamp<std::int64_t>(int_at(*k_lens_, b), 0, room_) : room_;
}

std::int64_t RowLocator::row(std::int64_t b, std::int64_t hk, std::int64_t key) const {
  const std::int64_t line = b * table_heads_ + hk % table_heads_;
  const std::int64_t block = table_ ? int_at(*table_, line * table_->shape.back() + key / page_size_) : b;
  return block * batch_ + hk * head_ + (table_ ? key % page_size_ : key) * token_;
}

void poison_unused(NamedTensor& tensor, const AttentionSpec& spec, const NamedTensor* k_lens,
                   const NamedTensor* block_table, const ProblemShape& shape) {
  const RowLocator located(spec, tensor, k_lens, block_table);
  const std::int64_t d = tensor.shape[3];
  const auto row_bytes = static_cast<std::size_t>(d * size_of(tensor.dtype));
  std::vector<bool> used(tensor.bytes.size() / row_bytes, false);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t fresh = spec.append ? shape.q[static_cast<std::size_t>(b)] : 0;
    for (std::int64_t key = 0; key < located.length(b) - fresh; ++key) {
      for (std::int64_t hk = 0; hk < spec.heads_kv; ++hk)
        used[static_cast<std::size_t>(located.row(b, hk, key) / d)] = true;
    }
  }
  poison_others(tensor, spec, used);
}

void poison_unchosen(NamedTensor& tensor, const AttentionSpec& spec, const NamedTensor& index,
                     const NamedTensor* key_count) {
  // K is [outer][rows][heads], or with heads first [outer][heads][rows]. Lists are [query][head][index].
  const bool heads_first = spec.layout == Layout::Bhsd, has_batch = !is_paged(spec) && tensor.shape.size() == 4;
  const std::int64_t heads = spec.heads_kv, room = listed_keys(spec), of_entry = room / spec.selected;
  const std::int64_t d = tensor.shape.back();
  const auto row_bytes = static_cast<std::size_t>(d * size_of(tensor.dtype));
  const std::int64_t all = static_cast<std::int64_t>(tensor.bytes.size() / row_bytes) / heads;  // rows of a head
  const std::int64_t batch = has_batch ? tensor.shape[0] : 1, rows = all / std::max<std::int64_t>(batch, 1);
  std::vector<bool> used(static_cast<std::size_t>(all * heads), false);
  const std::int64_t lists = static_cast<std::int64_t>(index.bytes.size()) / 4 / spec.selected;
  for (std::int64_t list = 0; list < lists; ++list) {
    const std::int64_t hk = list % heads, b = list / (lists / batch);
    const std::int64_t count = key_count ? std::min<std::int64_t>(int_at(*key_count, list), room) : room;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t number = int_at(index, list * spec.selected + i / of_entry);
      const std::int64_t row = number * of_entry + i % of_entry;
      if (number < 0 || row >= rows) continue;
      used[static_cast<std::size_t>(heads_first ? (b * heads + hk) * rows + row : (b * rows + row) * heads + hk)] =
          true;
    }
  }
  poison_others(tensor, spec, used);
}

}  // namespace flashjit
