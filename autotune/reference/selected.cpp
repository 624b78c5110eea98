// Lists of keys and of pages (select= in a spec) are followed by their definition.
#include <numeric>

#include "autotune/reference/reference.h"

namespace flashjit::reference {

namespace {

// Finds an element of [batch, query, KV head, ...]. Packed tokens have no batch.
std::int64_t offset_of(const Tensor& tensor, Layout layout, const RowId& row, std::int64_t hk) {
  const std::vector<std::int64_t> s = strides_of(tensor);
  return layout == Layout::Packed ? row.q * s[0] + hk * s[1] : row.b * s[0] + row.q * s[1] + hk * s[2];
}

const std::int32_t* ints(const Tensor& tensor) { return static_cast<const std::int32_t*>(tensor.data); }

}  // namespace

std::int64_t Problem::row_number(std::int64_t b, std::int64_t hk, std::int64_t k) const {
  if (spec_->page_size > 0) {
    const auto [page, token] = page_and_token(b, hk, k);
    return page * spec_->page_size + token;
  }
  return has_packed_keys(*spec_) ? ints(arguments_->offsets_k)[b] + k : k;
}

std::vector<std::int64_t> Problem::keys_of(const RowId& row) const {
  const std::int64_t rows = k_len(row.b);
  if (!selects(*spec_)) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const Tensor& index = arguments_->params.at(selects_pages(*spec_) ? "page_index" : "key_index");
  const std::int64_t hk = kv_head(row.h), begin = offset_of(index, spec_->layout, row, hk);
  const std::int64_t of_entry = selects_pages(*spec_) ? spec_->page_size : 1;
  std::int64_t count = spec_->selected * of_entry;
  if (const auto given = arguments_->params.find("key_count"); given != arguments_->params.end()) {
    const std::int64_t asked = ints(given->second)[offset_of(given->second, spec_->layout, row, hk)];
    count = asked < count ? asked : count;
  }
  std::vector<std::int64_t> keys;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t number = ints(index)[begin + i / of_entry * strides_of(index).back()];
    if (number < 0 || number >= rows / of_entry) continue;
    if (!shows_listed_ || shows_position(row, i / of_entry, i % of_entry))
      keys.push_back(number * of_entry + i % of_entry);
  }
  return keys;
}

// Applies the mask, if a call gives the positions of a query and of the first key of an entry.
bool Problem::shows_position(const RowId& row, std::int64_t entry, std::int64_t of_entry) const {
  const Tensor &queries = arguments_->params.at("q_positions"), &keys = arguments_->params.at("k_positions");
  const std::vector<std::int64_t> s = strides_of(queries);
  const bool packed = spec_->layout == Layout::Packed;
  Position at = position(row);
  at.q = ints(queries)[packed ? row.q * s[0] : row.b * s[0] + row.q * s[1]];
  at.q_len = at.k_len = at.q + 1;
  const std::int64_t first =
      ints(keys)[offset_of(keys, spec_->layout, row, kv_head(row.h)) + entry * strides_of(keys).back()];
  at.k = first + of_entry;
  constexpr std::int64_t kMost = (std::int64_t{1} << 30) - 1;
  const auto is_position = [](std::int64_t given) { return given >= 0 && given < kMost; };
  return is_position(at.q) && is_position(first) && is_position(at.k) && shows_listed_(at);
}

}  // namespace flashjit::reference
