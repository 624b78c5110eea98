#include "tests/replay/case.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <fmt/format.h>

#include "templates/latents/rows.h"

namespace flashjit::replay {
namespace {

using Numbers = std::vector<std::int64_t>;

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (std::size_t end = 0; end != text.npos; text.remove_prefix(std::min(text.size(), end + separator.size()))) {
    end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
  }
  return parts;
}

Result<Numbers> parse_numbers(std::string_view text, std::string_view separator) {
  Numbers numbers;
  if (text == "none") return numbers;
  for (const std::string& part : split(text, separator)) {
    const auto [end, failed] = std::from_chars(part.data(), part.data() + part.size(), numbers.emplace_back());
    if (failed != std::errc() || *end) return invalid(fmt::format("cases.txt: `{}` is no list of numbers", text));
  }
  return numbers;
}

Result<void> parse_shape(std::string_view text, ReplayCase& c) {
  std::int64_t batch = 0;
  for (const std::string& item : split(text, " ")) {
    const std::size_t sign = item.find('=');
    if (sign == item.npos) return invalid(fmt::format("cases.txt: `{}` of a shape is not name=numbers", item));
    const std::string name = item.substr(0, sign), value = item.substr(sign + 1);
    FLASHJIT_ASSIGN(numbers, parse_numbers(value, name == "q" || name == "k" ? "," : "x"));
    if (name == "b") batch = numbers.at(0);
    else if (name == "q") c.q_lens = numbers;
    else if (name == "k") c.k_lens = numbers;
    else c.params[name] = numbers;
  }
  if (c.spec.layout != Layout::Packed) {
    if (c.q_lens.size() != 1 || c.k_lens.size() != 1)
      return invalid(fmt::format("cases.txt: `{}` is not b=2 q=33 k=65", text));
    c.q_lens.assign(static_cast<std::size_t>(batch), c.q_lens[0]);
    c.k_lens.assign(static_cast<std::size_t>(batch), c.k_lens[0]);
  }
  if (c.q_lens.size() != c.k_lens.size()) return invalid(fmt::format("cases.txt: `{}` has not as many q as k", text));
  return {};
}

std::int64_t sum(const Numbers& values) { return std::accumulate(values.begin(), values.end(), std::int64_t{0}); }
std::int64_t most(const Numbers& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Hands out addresses, one tensor after the other.
class Placer {
 public:
  Placer(Placement placement, std::int64_t align) : padded_(placement == Placement::Padded), align_(align) {}

  Tensor place(Dtype dtype, Numbers shape) {
    return place(dtype, std::move(shape), padded_ ? std::max<std::int64_t>(align_, size_of(dtype)) : 0);
  }
  // Rows of numbers, which the kernel wants contiguous.
  Tensor place_rows(Dtype dtype, Numbers shape) { return place(dtype, std::move(shape), 0); }

 private:
  // `gap`: bytes, after every row and in front of all.
  Tensor place(Dtype dtype, Numbers shape, std::int64_t gap) {
    constexpr std::uintptr_t kApart = std::uintptr_t{1} << 32;
    next_ += kApart;
    Tensor tensor;
    tensor.data = reinterpret_cast<void*>(next_ + static_cast<std::uintptr_t>(gap));
    tensor.dtype = name(dtype);
    tensor.shape = std::move(shape);
    if (gap == 0) return tensor;
    tensor.strides.assign(tensor.shape.size(), 1);
    for (std::size_t i = tensor.shape.size() - 1; i-- > 0;) {
      tensor.strides[i] = tensor.strides[i + 1] * std::max<std::int64_t>(1, tensor.shape[i + 1]) + gap / size_of(dtype);
    }
    return tensor;
  }

  const bool padded_;
  const std::int64_t align_;
  std::uintptr_t next_ = 0;
};

// Of an operation that has no keys.
template <class Place>
Arguments without_keys(const ReplayCase& c, std::int64_t batch, std::int64_t q_tokens, Placer& placer,
                       const Place& place) {
  const AttentionSpec& spec = c.spec;
  const bool packed = spec.layout == Layout::Packed;
  Arguments call;
  if (quantizes(spec)) {
    call.params["x"] = place(spec.dtype, q_tokens, spec.heads_q, spec.d_qk);
    if (has_latent_rows(spec)) {
      call.params["y"] = place(Dtype::U8, q_tokens, spec.heads_q, latent_rows(spec.cache_format).row_bytes);
      return call;
    }
    call.params["y"] = place(spec.out_dtype, q_tokens, spec.heads_q, spec.d_qk);
    Numbers scales = packed ? Numbers{spec.heads_q} : Numbers{batch, spec.heads_q};
    if (spec.scale_block > 0) scales.insert(scales.begin() + 1, (q_tokens + spec.scale_block - 1) / spec.scale_block);
    call.params["scale"] = placer.place_rows(Dtype::F32, scales);
    return call;
  }
  const auto of_parts = [&](Numbers shape) {
    shape.insert(shape.begin(), most(c.k_lens));
    return shape;
  };
  call.o = place(spec.out_dtype, q_tokens, spec.heads_q, spec.d_v);
  call.params["o_parts"] = placer.place(spec.dtype, of_parts(call.o.shape));
  const Numbers rows = packed ? Numbers{spec.heads_q, q_tokens} : Numbers{batch, spec.heads_q, q_tokens};
  if (spec.lse != Lse::none) call.lse = placer.place_rows(Dtype::F32, rows);
  call.params["lse_parts"] = placer.place_rows(Dtype::F32, of_parts(rows));
  return call;
}

// Tensors that have something for each query. `queries`: [batch, tokens], or, packed, [tokens].
void place_row_values(const ReplayCase& c, const Numbers& queries, Placer& placer, Arguments& call) {
  const AttentionSpec& spec = c.spec;
  const auto with = [&](std::initializer_list<std::int64_t> more) {
    Numbers shape = queries;
    shape.insert(shape.end(), more);
    return shape;
  };
  Numbers rows = queries;
  rows.insert(rows.end() - 1, spec.heads_q);
  if (spec.lse != Lse::none) call.lse = placer.place_rows(Dtype::F32, rows);
  if (spec.max_logit) call.max_logit = placer.place_rows(Dtype::F32, rows);
  if (spec.sink) call.sink = placer.place_rows(Dtype::F32, {spec.heads_q});
  if (drops(spec)) call.params["seed"] = call.params["offset"] = placer.place_rows(Dtype::I64, {1});
  if (!indexes(spec)) return;
  const std::int64_t page = std::max(spec.page_size, 1), keys = (most(c.k_lens) + page - 1) / page * page;
  call.params["weights"] = placer.place_rows(Dtype::F32, with({spec.heads_q}));
  if (writes_scores(spec)) call.params["scores"] = placer.place_rows(Dtype::F32, with({spec.heads_kv, keys}));
}

// Positions of keys are as many as their lists have; a query has one.
void place_positions(const Numbers& lists, Placer& placer, Arguments& call) {
  call.params["q_positions"] = placer.place(Dtype::I32, Numbers(lists.begin(), lists.end() - 2));
  call.params["k_positions"] = placer.place(Dtype::I32, lists);
}

}  // namespace

Result<ReplayCase> parse_case(std::string_view line) {
  const std::vector<std::string> columns = split(line, " // ");
  if (columns.size() < 2) return invalid(fmt::format("cases.txt: `{}` is not SPEC // SHAPE // PINS", line));
  ReplayCase c;
  c.text = columns[0];
  FLASHJIT_ASSIGN(spec, parse_spec(c.text));
  c.spec = spec;
  FLASHJIT_TRY(parse_shape(columns[1], c));
  c.pins.assign(columns.begin() + 2, columns.end());
  return c;
}

Arguments arguments_of(const ReplayCase& c, Placement placement) {
  const AttentionSpec& spec = c.spec;
  const bool packed = spec.layout == Layout::Packed;
  const auto batch = static_cast<std::int64_t>(c.q_lens.size());
  const std::int64_t q_tokens = packed ? sum(c.q_lens) : most(c.q_lens),
                     k_tokens = packed ? sum(c.k_lens) : most(c.k_lens);
  Placer placer(placement, spec.align_bytes);
  const auto place = [&](Dtype dtype, std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
    if (packed) return placer.place(dtype, {tokens, heads, dim});
    if (spec.layout == Layout::Bhsd) return placer.place(dtype, {batch, heads, tokens, dim});
    return placer.place(dtype, {batch, tokens, heads, dim});
  };
  Arguments call;
  if (!reads_keys(spec)) return without_keys(c, batch, q_tokens, placer, place);
  const bool has_v = attends(spec) && !spec.v_in_k;
  call.q = place(spec.dtype, q_tokens, spec.heads_q, spec.d_qk);
  const Dtype key_dtype = has_latent_rows(spec) ? Dtype::U8 : spec.kv_dtype;
  const int key_columns = has_latent_rows(spec) ? latent_rows(spec.cache_format).row_bytes : spec.d_qk;
  if (is_paged(spec)) {
    const std::int64_t line = (most(c.k_lens) + spec.page_size - 1) / spec.page_size, pages = line * batch;
    call.k = placer.place(key_dtype, {pages, spec.page_size, spec.heads_kv, key_columns});
    if (has_v) call.v = placer.place(spec.kv_dtype, {pages, spec.page_size, spec.heads_kv, spec.d_v});
    if (has_block_table(spec))
      call.params["block_table"] =
          placer.place(Dtype::I32, has_head_tables(spec) ? Numbers{batch, spec.heads_kv, line} : Numbers{batch, line});
  } else {
    call.k = place(key_dtype, k_tokens, spec.heads_kv, key_columns);
    if (has_v) call.v = place(spec.kv_dtype, k_tokens, spec.heads_kv, spec.d_v);
    if (spec.v_transposed) call.v = placer.place(spec.kv_dtype, {batch, spec.heads_kv, spec.d_v, k_tokens});
  }
  if (spec.selected > 0) {
    const char* name = spec.whole_pages ? "page_index" : "key_index";
    const Numbers lists = packed ? Numbers{q_tokens, spec.heads_kv, spec.selected}
                                 : Numbers{batch, q_tokens, spec.heads_kv, spec.selected};
    call.params[name] = placer.place(Dtype::I32, lists);
    if (reads_positions(spec)) place_positions(lists, placer, call);
  }
  if (spec.k_lens) call.params["k_lens"] = placer.place_rows(Dtype::I32, {batch});
  if (has_scaled_keys(spec)) {
    call.params["scale_k"] = placer.place_rows(Dtype::F32, {batch, spec.heads_kv});
    if (attends(spec)) call.params["scale_v"] = placer.place_rows(Dtype::F32, {spec.heads_kv});
  }
  if (attends(spec)) call.o = place(spec.out_dtype, q_tokens, spec.heads_q, spec.d_v);
  place_row_values(c, packed ? Numbers{q_tokens} : Numbers{batch, q_tokens}, placer, call);
  if (is_packed(spec)) {
    call.offsets_q = placer.place_rows(Dtype::I32, {batch + 1});
    if (has_packed_keys(spec)) call.offsets_k = placer.place_rows(Dtype::I32, {batch + 1});
    call.max_q_len = most(c.q_lens);
    if (has_packed_keys(spec)) call.max_k_len = most(c.k_lens);
  }
  for (const Param& param : spec.params) {
    const auto given = c.params.find(param.name);
    if (given == c.params.end()) continue;  // the kernel says that it is missing
    if (param.rank > 0) call.params[param.name] = placer.place(param.dtype, given->second);
    else call.scalars[param.name] = static_cast<double>(given->second.at(0));
  }
  return call;
}

}  // namespace flashjit::replay
