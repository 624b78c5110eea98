#include "autotune/reference/narrowed.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "autotune/reference/quantize.h"
#include "compiler/narrowing.h"
#include "compiler/spec/half.h"

namespace flashjit::reference {
namespace {

// Returns where the tokens of each group with scales of its own begin, and where the last group ends.
std::vector<std::int64_t> begins_of(bool by_offsets, const Tensor& offsets, std::int64_t batch, std::int64_t tokens) {
  std::vector<std::int64_t> begins;
  if (by_offsets) {
    const auto* values = static_cast<const std::int32_t*>(offsets.data);
    begins.assign(values, values + offsets.shape[0]);
  } else {
    for (std::int64_t b = 0; b <= batch; ++b) begins.push_back(b * tokens);
  }
  return begins;
}

}  // namespace

Tensor rows_of_columns(const Tensor& v, Layout layout) {
  std::vector<std::size_t> order = {0, 3, 1, 2};
  if (layout == Layout::Bhsd) order = {0, 1, 3, 2};
  if (layout == Layout::Packed) order = {2, 0, 1};
  if (v.shape.size() != order.size()) return v;
  const std::vector<std::int64_t> strides = strides_of(v);
  Tensor rows = v;
  rows.strides.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) rows.shape[i] = v.shape[order[i]], rows.strides[i] = strides[order[i]];
  return rows;
}

Narrowed::Narrowed(const AttentionSpec& given, const Arguments& arguments)
    : Narrowed(given, attention_to_rounded(given), arguments) {}

Narrowed::Narrowed(const AttentionSpec& given, const AttentionSpec& spec, const Arguments& arguments)
    : spec_(spec), arguments_(arguments) {
  AttentionSpec of_values = given;
  of_values.rotate = false;
  of_values.rope = Rope::none;
  const std::size_t tokens = given.layout == Layout::Bhsd ? 2 : 1;
  const bool at_the_end = given.rope != Rope::none && given.alignment == Alignment::BottomRight;
  const std::int64_t first = at_the_end ? arguments.k.shape[tokens] - arguments.q.shape[tokens] : 0;
  narrow(given, arguments, Of::queries, first, doubts_.q);
  narrow(given, arguments, Of::keys, 0, doubts_.k);
  std::vector<float> none;  // V is rounded as it is.
  if (!given.v_in_k) narrow(of_values, arguments, Of::values, 0, none);
  arguments_.params.erase("cos");
  arguments_.params.erase("sin");
}

void Narrowed::narrow(const AttentionSpec& given, const Arguments& call, Of of, std::int64_t first_position,
                      std::vector<float>& doubts) {
  const bool of_queries = of == Of::queries, in_pages = !of_queries && spec_.page_size > 0;
  Tensor& tensor = of_queries ? arguments_.q : of == Of::keys ? arguments_.k : arguments_.v;
  const Dtype dtype = of_queries ? spec_.dtype : spec_.kv_dtype;
  const int block_rows = !of_queries && spec_.token_scales ? 1 : spec_.scale_block;
  const bool packed = given.layout == Layout::Packed && !in_pages, heads_first = given.layout == Layout::Bhsd;
  const auto rows_of = [&](const Tensor& of_call) {
    return of == Of::values && given.v_transposed ? rows_of_columns(of_call, given.layout) : of_call;
  };
  const Tensor written = {nullptr, std::string(name(dtype)), tensor.shape, {}};
  const std::vector<std::int64_t> from = strides_of(rows_of(tensor)), to = strides_of(rows_of(written)),
                                  shape = rows_of(tensor).shape;
  const std::size_t of_token = packed ? 0 : heads_first ? 2 : 1, of_head = packed ? 1 : heads_first ? 1 : 2;
  const std::int64_t heads = shape[of_head], d = shape.back();
  const std::int64_t count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  // In packed sequences and in pages only blocks, or single tokens, have scales of their own.
  const bool all_as_one = packed || (in_pages && block_rows == 0);
  const std::vector<std::int64_t> begins =
      begins_of(packed && spec_.scale_block > 0, of_queries ? call.offsets_q : call.offsets_k,
                all_as_one ? 1 : shape[0], all_as_one ? count / heads / d : shape[of_token]);
  const auto batch = static_cast<std::int64_t>(begins.size()) - 1;
  const auto begin = [&](std::int64_t b) { return begins[static_cast<std::size_t>(b)]; };
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < batch; ++b) longest = std::max(longest, begin(b + 1) - begin(b));
  const std::int64_t rows = block_rows > 0 ? block_rows : std::max<std::int64_t>(longest, 1);
  const std::int64_t blocks = block_rows > 0 ? (longest + rows - 1) / rows : 1;
  const auto at = [&](const std::vector<std::int64_t>& s, std::int64_t b, std::int64_t h, std::int64_t token) {
    return (packed ? begin(b) * s[0] : b * s[0]) + h * s[of_head] + token * s[of_token];
  };
  std::vector<std::uint8_t>& elements = elements_.emplace_back(static_cast<std::size_t>(count));
  doubts.assign(elements.size(), 0);
  std::vector<float>& scales = scales_.emplace_back(static_cast<std::size_t>(batch * blocks * heads), 1.0f);
  std::vector<double> row(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < batch * heads * blocks; ++i) {
    const std::int64_t b = i / blocks / heads, h = i / blocks % heads, number = i % blocks;
    const std::int64_t first = number * rows, end = std::min(first + rows, begin(b + 1) - begin(b));
    GivenRows block;
    for (std::int64_t token = first; token < end; ++token) {
      for (std::int64_t c = 0; c < d; ++c)
        row[static_cast<std::size_t>(c)] =
            load_float(given.dtype, tensor.data, at(from, b, h, token) + c * from.back());
      add_row(block, given, call, row, std::max<std::int64_t>(first_position + token, 0));
    }
    const QuantizedRows rounded = quantize_rows(block, static_cast<int>(d), given.rotate, dtype);
    scales[static_cast<std::size_t>((b * blocks + number) * heads + h)] = rounded.scale;
    for (std::size_t j = 0; j < rounded.y.size(); ++j) {
      const auto row = static_cast<std::int64_t>(j) / d, column = static_cast<std::int64_t>(j) % d;
      const std::int64_t offset = at(to, b, h, first + row) + column * to.back();
      store_float(dtype, elements.data(), offset, static_cast<float>(rounded.y[j]));
      doubts[static_cast<std::size_t>(offset)] = static_cast<float>(rounded.doubts[j]);
    }
  }
  std::vector<std::int64_t> of_scales = {batch, heads};
  if (block_rows > 0) of_scales.insert(of_scales.begin() + 1, blocks);
  tensor = written;
  tensor.data = elements.data();
  const char* const scale = of_queries ? "scale_q" : of == Of::keys ? "scale_k" : "scale_v";
  arguments_.params[scale] = {scales.data(), "fp32", of_scales, {}};
}

void add_doubts(ExactRow& row, const std::vector<Logit>& logits, const std::vector<float>& values,
                const std::vector<float>& value_scale) {
  const std::size_t width = row.o.size();
  for (const Logit& logit : logits) {
    if (!(logit.doubt > 0)) continue;
    const double weight = std::exp(logit.value - row.lse);
    row.lse_doubt = std::hypot(row.lse_doubt, weight * logit.doubt);
    row.max_doubt = std::max(row.max_doubt, logit.doubt);
    row.o_doubt.resize(width);
    for (std::size_t c = 0; c < width; ++c) {
      const double v = values[static_cast<std::size_t>(logit.k) * width + c] *
                       double{value_scale[static_cast<std::size_t>(logit.k)]};
      row.o_doubt[c] = std::hypot(row.o_doubt[c], weight * std::expm1(logit.doubt) * (v - row.o[c]));
    }
  }
}

double Problem::doubt(const RowId& row, std::int64_t k, const std::vector<double>& query, const float* key) const {
  if (!doubts_) return 0;
  const float* of_query = &doubts_->q[static_cast<std::size_t>(query_offset(arguments_->q, row))];
  const float* of_key = &doubts_->k[static_cast<std::size_t>(key_offset(arguments_->k, row.b, kv_head(row.h), k))];
  double sum = 0;
  for (std::size_t i = 0; i < query.size(); ++i)
    sum += std::pow(query[i] * of_key[i], 2) + std::pow(key[i] * of_query[i], 2);
  return std::sqrt(sum);
}

}  // namespace flashjit::reference
