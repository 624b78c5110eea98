#include "autotune/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fmt/format.h"
#include "autotune/reference/arithmetic.h"
#include "autotune/reference/blocks.h"
#include "autotune/reference/narrowed.h"
#include "autotune/reference/rope.h"
#include "compiler/spec/half.h"

namespace flashjit::reference {
namespace {

constexpr double kNoWeight = -80;  // Below it a weight may be no normal number.
// Weights of 8 bits are scaled so that the largest of a row is this, of 448 at most. The other constant is half of the
// least positive weight.
constexpr float kLargestNarrow = 256;
constexpr double kHalfLeastNarrow = 0x1p-10 / kLargestNarrow;

// A merge of packed tokens has one sequence of them all, and so do tokens with lists of keys.
bool packed(const AttentionSpec& spec) { return spec.layout == Layout::Packed && !merges(spec) && !selects(spec); }
bool paged(const AttentionSpec& spec) { return spec.page_size > 0; }

// Strides of [batch, head, token] for a tensor in the user's shape.
struct Steps {
  std::int64_t batch = 0, head = 0, token = 0;
};

Steps steps(const Tensor& tensor, Layout layout) {
  const std::vector<std::int64_t> s = strides_of(tensor);
  if (layout == Layout::Packed) return {0, s[1], s[0]};
  if (layout == Layout::Bhsd) return {s[0], s[1], s[2]};
  return {s[0], s[2], s[1]};
}

Dtype dtype_of(const Tensor& tensor) { return parse_dtype(tensor.dtype).value_or(Dtype::F32); }

// Such a key adds nothing. Only values that are not finite can show.
void taint(ExactRow& row, const float* value) {
  for (std::size_t c = 0; c < row.tainted.size(); ++c) {
    if (!std::isfinite(value[c])) row.tainted[c] = true;
  }
}

// Returns the tensor whose rows begin with those of V.
Tensor values_of(const AttentionSpec& spec, const Arguments& arguments) {
  return spec.v_in_k ? arguments.k : spec.v_transposed ? rows_of_columns(arguments.v, spec.layout) : arguments.v;
}

// Roundings of P are uniform within one unit, so their variance is a third of the unit squared. exp in fp32 and the
// logit's own error move p by a relative amount, which normalisation takes back if all keys move alike. Errors are
// equal for keys of equal logits, so their effects on such keys add up before they are squared. Or they are
// independent, for example if a kernel raised its reference between the keys. The larger variance counts. fp32 sums go
// over the keys one after the other: each step rounds a partial sum, which grows from one term to the whole. Small
// weights of 8 bits are rounded to multiples of the least one. Their logits are sums of products of 8 bits, too: logits
// of thousands are wrong by several nats.
void add_variance(ExactRow& row, const AttentionSpec& spec, Dtype weights, std::vector<Logit> logits,
                  const std::vector<float>& values, const std::vector<float>& value_scale, double reference,
                  double sum) {
  struct Column {
    double sum = 0, squares = 0, moved = 0, moved_squares = 0;
  };
  const int width = spec.d_v;
  const bool narrow = size_of(weights) == 1;
  const double steps =
      narrow ? std::pow(kLostOfTile, 2) : static_cast<double>(logits.size()) * std::pow(unit_of_sums(weights), 2) / 6;
  const double rounding = std::pow(unit_roundoff(weights), 2) / 3;
  const double least = narrow ? kHalfLeastNarrow * std::exp(row.max_logit - reference) / sum : 0;
  std::ranges::sort(logits, {}, &Logit::value);
  std::vector<Column> columns;
  for (auto first = std::ranges::upper_bound(logits, -kInfinity, {}, &Logit::value); first != logits.end();) {
    const auto end = std::find_if(first, logits.end(), [&](const Logit& logit) { return logit.value != first->value; });
    double error = 0;  // An error that is NaN counts as none.
    for (auto logit = first; logit != end; ++logit) error = std::max(error, logit->error);
    const double p = std::exp(first->value - reference) / sum;
    const double move = narrow ? std::pow(deviation_of_weight(first->value - row.lse, error), 2)
                               : p * p * std::min(1.0, error * error + 0x1p-44);
    const double of_weight = std::max(p * p * rounding, least * least / 3), of_steps = p * p * steps;
    if (end - first == 1) {  // This is the most frequent case, in which nothing has to be added up.
      const float* const value = &values[first->k * width];
      const double scale = value_scale[first->k];
      for (int c = 0; c < width; ++c) {
        const double v = value[c] * scale, moved = v - row.o[c];
        row.variance[c] += (of_weight + of_steps) * (v * v) + move * (moved * moved);
      }
      first = end;
      continue;
    }
    columns.assign(static_cast<std::size_t>(width), {});
    for (auto logit = first; logit != end; ++logit) {
      for (int c = 0; c < width; ++c) {
        const double v = values[logit->k * width + c] * double{value_scale[logit->k]}, moved = v - row.o[c];
        Column& column = columns[c];
        column.sum += v, column.squares += v * v;
        column.moved += moved, column.moved_squares += moved * moved;
      }
    }
    for (int c = 0; c < width; ++c) {
      const auto& [whole, squares, moved, moved_squares] = columns[c];
      row.variance[c] += of_weight * std::max(whole * whole, squares) + of_steps * squares +
                         move * std::max(moved * moved, moved_squares);
    }
    first = end;
  }
  const double output_rounding = std::pow(unit_roundoff(spec.out_dtype), 2) / 3;
  for (int c = 0; c < width; ++c) row.variance[c] += (output_rounding + steps) * row.o[c] * row.o[c];
}

}  // namespace

Result<Problem> Problem::create(const AttentionSpec& spec, const Arguments& arguments, Semantics semantics) {
  FLASHJIT_TRY(check_honoured(spec));
  Problem problem;
  problem.spec_ = &spec;
  problem.arguments_ = &arguments;
  problem.semantics_ = std::move(semantics);
  problem.weights_ = merges(spec) ? Dtype::F32 : size_of(spec.dtype) == 1 ? Dtype::F16 : spec.dtype;
  if (merges(spec)) {
    if (!arguments.params.contains("o_parts") || !arguments.params.contains("lse_parts"))
      return invalid("reference: o_parts or lse_parts is missing in params");
    problem.batch_ = spec.layout == Layout::Packed ? 1 : arguments.o.shape.at(0);
    return problem;
  }
  if (spec.operation == Operation::Quantize) {  // compare_quantized() looks for its tensors itself.
    for (const char* name : {"x", "y", "scale"}) {
      if (has_latent_rows(spec) && name == std::string_view("scale")) continue;
      if (!arguments.params.contains(name)) return invalid(fmt::format("reference: {} is missing in params", name));
    }
    return problem;
  }
  const bool is_one = spec.layout == Layout::Packed;
  const std::size_t q_rank = is_one ? 3 : 4, k_rank = is_one && !paged(spec) ? 3 : 4;
  const Tensor v = indexes(spec) ? arguments.k : values_of(spec, arguments);
  for (const auto& [tensor, rank] : {std::pair(&arguments.q, q_rank), {&arguments.k, k_rank}, {&v, k_rank}}) {
    if (tensor->shape.size() != rank) {
      return invalid(
          fmt::format("reference: a tensor has {} dimensions, the layout has {}", tensor->shape.size(), rank));
    }
  }
  for (const auto& [name, needed] : {std::pair("k_lens", spec.k_lens),
                                     {"block_table", paged(spec) && !selects(spec)},
                                     {"key_index", selects_keys(spec) || writes_lists(spec)},
                                     {"weights", indexes(spec)},
                                     {"scores", writes_scores(spec)},
                                     {"page_index", selects_pages(spec)},
                                     {"q_positions", reads_positions(spec)},
                                     {"k_positions", reads_positions(spec)},
                                     {"k_new", spec.append},
                                     {"v_new", spec.append && !spec.v_in_k},
                                     {"do", spec.operation == Operation::Backward},
                                     {"dlse", spec.dlse},
                                     {"earlier o", goes_on_from_results(spec)},
                                     {"earlier lse", goes_on_from_results(spec)},
                                     {"cos", spec.rope != Rope::none && spec.rope_base == 0},
                                     {"sin", spec.rope != Rope::none && spec.rope_base == 0}}) {
    if (needed && !arguments.params.contains(name))
      return invalid(fmt::format("reference: {} is missing in params", name));
  }
  for (const char* name : {"seed", "offset"}) {
    if (spec.dropout > 0 && !arguments.params.contains(name) && !arguments.scalars.contains(name))
      return invalid(fmt::format("reference: {} is missing", name));
  }
  if (has_blocks(spec)) FLASHJIT_TRY(look_at_lists(spec, arguments, problem.semantics_));
  problem.dropout_ = dropout_of(spec, arguments);
  problem.batch_ = packed(spec) ? arguments.offsets_q.shape.at(0) - 1 : is_one ? 1 : arguments.q.shape[0];
  if (spec.places) problem.shift_positions();
  if (reads_positions(spec)) problem.shows_listed_ = std::exchange(problem.semantics_.visible, {});
  return problem;
}

void Problem::round_weights_to(std::string_view dtype) {
  if (!merges(*spec_)) weights_ = parse_dtype(dtype).value_or(weights_);
}

std::int64_t Problem::q_len(std::int64_t b) const {
  if (packed(*spec_)) {
    const auto* offsets = static_cast<const std::int32_t*>(arguments_->offsets_q.data);
    return offsets[b + 1] - offsets[b];
  }
  const Tensor& tensor = merges(*spec_) ? arguments_->o : arguments_->q;
  return tensor.shape[spec_->layout == Layout::Packed ? 0 : spec_->layout == Layout::Bhsd ? 2 : 1];
}

std::int64_t Problem::k_len(std::int64_t b) const {
  if (merges(*spec_)) return arguments_->params.at("o_parts").shape[0];
  std::int64_t room = 0;
  if (paged(*spec_) && selects(*spec_)) {
    room = arguments_->k.shape[0] * spec_->page_size;
  } else if (paged(*spec_)) {
    room = arguments_->params.at("block_table").shape.back() * spec_->page_size;
    if (room > spec_->k_len.max) room = spec_->k_len.max;
    if (arguments_->k.shape[0] == 0) room = 0;
  } else if (packed(*spec_)) {
    const auto* offsets = static_cast<const std::int32_t*>(arguments_->offsets_k.data);
    room = offsets[b + 1] - offsets[b];
  } else {
    room = arguments_->k.shape[spec_->layout == Layout::Packed ? 0 : spec_->layout == Layout::Bhsd ? 2 : 1];
  }
  if (!spec_->k_lens) return room;
  const std::int64_t asked = static_cast<const std::int32_t*>(arguments_->params.at("k_lens").data)[b];
  return asked < 0 ? 0 : asked > room ? room : asked;
}

std::vector<RowId> Problem::rows() const {
  std::vector<RowId> rows;
  for (std::int64_t b = 0; b < batch_; ++b) {
    for (std::int64_t h = 0; h < spec_->heads_q; ++h) {
      for (std::int64_t q = 0; q < q_len(b); ++q) rows.push_back({b, h, q});
    }
  }
  return rows;
}

std::int64_t Problem::offset(const Tensor& tensor, std::int64_t start, const RowId& at) const {
  const Steps s = steps(tensor, spec_->layout);
  return at.b * s.batch + at.h * s.head + (start + at.q) * s.token;
}

std::int64_t Problem::key_offset(const Tensor& tensor, std::int64_t b, std::int64_t hk, std::int64_t k) const {
  if (!paged(*spec_)) {
    const std::int64_t start = packed(*spec_) ? static_cast<const std::int32_t*>(arguments_->offsets_k.data)[b] : 0;
    return offset(tensor, start, {b, hk, k});
  }
  const std::vector<std::int64_t> pool = strides_of(tensor);
  const auto [page, in_page] = page_and_token(b, hk, k);
  return page * pool[0] + in_page * pool[1] + hk * pool[2];
}

// Returns the page of a key, and its token in that page.
std::pair<std::int64_t, std::int64_t> Problem::page_and_token(std::int64_t b, std::int64_t hk, std::int64_t k) const {
  const std::int64_t number = k / spec_->page_size;
  if (selects(*spec_)) return {number, k % spec_->page_size};
  const Tensor& table = arguments_->params.at("block_table");
  const std::vector<std::int64_t> line = strides_of(table);
  const std::int64_t at = b * line[0] + number * line.back() + (has_head_tables(*spec_) ? hk * line[1] : 0);
  return {static_cast<const std::int32_t*>(table.data)[at], k - number * spec_->page_size};
}

Problem::KeysValues Problem::keys_values(std::int64_t b, std::int64_t hk) const {
  KeysValues kv;
  if (merges(*spec_)) return kv;
  const std::int64_t length = k_len(b);
  const auto gather = [&](const Tensor& tensor, int width, std::vector<float>& out) {
    out.resize(length * width);
    for (std::int64_t k = 0; k < length; ++k) {
      const std::int64_t at = key_offset(tensor, b, hk, k), step = strides_of(tensor).back();
      for (int i = 0; i < width; ++i) out[k * width + i] = load_float(dtype_of(tensor), tensor.data, at + i * step);
    }
  };
  if (has_latent_rows(*spec_)) return latents(b);
  gather(arguments_->k, spec_->d_qk, kv.k);
  if (spec_->compute) turn_keys(*spec_, *arguments_, kv.k);  // A cache holds keys that have turned.
  if (!indexes(*spec_)) gather(values_of(*spec_, *arguments_), spec_->d_v, kv.v);
  for (std::int64_t k = 0; k < length; ++k) {
    kv.scale_k.push_back(element_scale("scale_k", b, hk, k));
    kv.scale_v.push_back(element_scale(spec_->v_in_k ? "scale_k" : "scale_v", b, hk, k));
  }
  return kv;
}

std::int64_t Problem::query_offset(const Tensor& tensor, const RowId& row) const {
  return offset(tensor, packed(*spec_) ? static_cast<const std::int32_t*>(arguments_->offsets_q.data)[row.b] : 0, row);
}

std::vector<double> Problem::elements(const Tensor& tensor, std::int64_t offset, int count) const {
  std::vector<double> row(count);
  for (int i = 0; i < count; ++i) row[i] = load_float(dtype_of(tensor), tensor.data, offset + i);
  return row;
}

Position Problem::position(const RowId& row) const {
  return {row.q, 0, row.b, row.h, kv_head(row.h), q_len(row.b), k_len(row.b)};
}

float Problem::sink(const RowId& row) const { return static_cast<const float*>(arguments_->sink.data)[row.h]; }

// Scales are [batch, head]. With token_scales those of K and V are like K without d, and with blocks they are [batch,
// block, head], or those of a page. Leading dimensions may be left out, and those of size 1 count for all.
float Problem::element_scale(const std::string& name, std::int64_t b, std::int64_t head, std::int64_t row) const {
  const auto found = arguments_->params.find(name);
  const bool declared = std::ranges::find(spec_->params, name, &Param::name) != spec_->params.end();
  if (declared || found == arguments_->params.end()) return 1;
  const Tensor& tensor = found->second;
  const std::vector<std::int64_t> s = strides_of(tensor);
  std::vector<std::int64_t> indices = {b, head};
  const bool of_keys = name != "scale_q", by_token = of_keys && spec_->token_scales;
  if (of_keys && paged(*spec_) && has_key_scales(*spec_)) {
    const auto [page, token] = page_and_token(b, head, row);
    indices = {page, by_token ? token : token / spec_->scale_block, head};
  } else if (by_token && packed(*spec_)) {
    indices = {static_cast<const std::int32_t*>(arguments_->offsets_k.data)[b] + row, head};
  } else if (by_token) {
    indices = {b, row, head};
  } else if (spec_->scale_block > 0) {
    indices = {b, row / spec_->scale_block, head};
  }
  std::int64_t at = 0;
  const std::size_t left_out = indices.size() - tensor.shape.size();
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] > 1) at += indices[i + left_out] * s[i];
  }
  return static_cast<const float*>(tensor.data)[at];
}

// Returns the logits of the visible keys.
std::vector<Logit> Problem::exact_logits(const RowId& row, const KeysValues& kv, ExactRow& result) const {
  const int d = spec_->d_qk, width = spec_->d_v;
  const std::vector<double> query = this->query(row);
  const double query_scale = this->query_scale(row);
  Position at = position(row);
  std::vector<Logit> logits;
  for (const std::int64_t k : keys_of(row)) {
    at.k = k;
    if (semantics_.visible && !semantics_.visible(at)) {
      if (at.k < semantics_.unseen_from) taint(result, &kv.v[at.k * width]);
      continue;
    }
    const float* const key = &kv.k[at.k * d];
    const auto with = [&](double doubt) {
      return logit_of(*spec_, semantics_, at, query.data(), key, query_scale * kv.scale_k[at.k], unit_of_sums(weights_),
                      doubt);
    };
    Logit logit = with(0);
    if (const double doubt = this->doubt(row, at.k, query, key); doubt > 0)
      logit.doubt = with(doubt).error - logit.error;
    if (std::isnan(logit.value)) result.nan_logit = true;
    else result.max_logit = std::max(result.max_logit, logit.value);
    if (std::isfinite(logit.error)) result.logit_error = std::max(result.logit_error, logit.error);
    logits.push_back(logit);
  }
  return logits;
}

ExactRow Problem::finish(const RowId& row, std::vector<Logit> logits, const std::vector<float>& values,
                         const std::vector<float>& scale_v, ExactRow result, bool with_errors) const {
  const int width = spec_->d_v;
  Position at = position(row);
  double reference = result.max_logit;
  if (spec_->sink) reference = std::max<double>(reference, sink(row));
  result.o.assign(width, 0);
  result.variance.assign(width, 0);
  if (reference == -kInfinity && !result.nan_logit) {
    result.lse = -kInfinity;  // If nothing is visible, O is zero by definition.
    return result;
  }
  double sum = spec_->sink ? std::exp(sink(row) - reference) : 0;
  for (const Logit& logit : logits) sum += std::exp(logit.value - reference);
  result.lse = reference + std::log(sum);
  std::vector<float> weights = scale_v;  // weights of V
  for (const Logit& logit : logits) {
    // A logit of -infinity is the same as hidden, whatever V holds. And fp32 may round a small weight to 0.
    at.k = logit.k;
    const bool dropped = dropout_.drops(at);
    if (dropped || logit.value - reference < kNoWeight) taint(result, &values[logit.k * width]);
    weights[logit.k] *= dropped ? 0 : static_cast<float>(dropout_.factor());
    const double p = std::exp(logit.value - reference) / sum * dropout_.factor();
    // A NaN makes its row NaN, whatever is dropped.
    if (logit.value == -kInfinity || (dropped && !std::isnan(p))) continue;
    for (int c = 0; c < width; ++c) result.o[c] += p * values[logit.k * width + c] * scale_v[logit.k];
  }
  if (!with_errors) return result;
  add_doubts(result, logits, values, weights);
  if (!result.nan_logit) add_variance(result, *spec_, weights_, std::move(logits), values, weights, reference, sum);
  return result;
}

ExactRow Problem::exact(const RowId& row, const KeysValues& kv, bool with_errors) const {
  ExactRow result;
  result.tainted.assign(spec_->d_v, false);
  result.max_logit = -kInfinity;
  if (!merges(*spec_)) {
    std::vector<Logit> logits = exact_logits(row, kv, result);
    result = finish(row, std::move(logits), kv.v, kv.scale_v, std::move(result), with_errors);
    return goes_on_from_results(*spec_) ? continued(row, std::move(result)) : result;
  }
  std::vector<Logit> logits;
  for (const float own : part_lse(row)) {
    if (std::isnan(own)) result.nan_logit = true;
    else result.max_logit = std::max<double>(result.max_logit, own);
    logits.push_back({static_cast<std::int64_t>(logits.size()), own, 0x1p-24 * std::fabs(own)});
  }
  const std::vector<float> ones(logits.size(), 1);
  result = finish(row, std::move(logits), part_rows(row), ones, std::move(result), with_errors);
  if (spec_->max_logit) result.max_logit = largest_of_parts(row);
  return result;
}

// Weights are rounded when those of a row add up to 1. Weights of 8 bits, whose range is small, are rounded when the
// largest is near the end of the range.
float Problem::rounded_weight(float p, float sum, float largest) const {
  if (size_of(weights_) > 1) return round_to(weights_, p / sum);
  if (largest == 0) return 0;
  return round_to(weights_, p / largest * kLargestNarrow) / kLargestNarrow * (largest / sum);
}

RecipeRow Problem::recipe(const RowId& row, const KeysValues& kv) const {
  if (merges(*spec_)) return merged_recipe(row);
  const int d = spec_->d_qk, width = spec_->d_v;
  std::vector<float> query;
  const float query_scale = this->query_scale(row);
  for (const double x : this->query(row)) query.push_back(round_to(spec_->dtype, static_cast<float>(x)) * query_scale);
  const float scale = static_cast<float>(spec_->effective_scale());
  Position at = position(row);
  std::vector<std::int64_t> keys;
  std::vector<float> p, terms(d);
  float largest = spec_->sink ? sink(row) : -INFINITY;
  for (const std::int64_t k : keys_of(row)) {
    at.k = k;
    if (semantics_.visible && !semantics_.visible(at)) continue;
    for (int i = 0; i < d; ++i) terms[i] = query[i] * (kv.k[at.k * d + i] * kv.scale_k[at.k]);
    float s = sum_in_pairs(terms.data(), terms.size()) * scale;
    if (semantics_.score) s = semantics_.score(at, Dual(s, s)).f;
    if (s == -INFINITY) continue;
    largest = std::isnan(s) || std::isnan(largest) ? NAN : std::max(largest, s);
    keys.push_back(at.k);
    p.push_back(s);
  }
  RecipeRow result;
  result.o.assign(width, 0);
  if (keys.empty()) return goes_on_from_results(*spec_) ? continued(row, std::move(result), -INFINITY) : result;
  for (float& x : p) x = std::exp(x - largest);
  const float sum = sum_in_pairs(p.data(), p.size()) + (spec_->sink ? std::exp(sink(row) - largest) : 0.0f);
  const float top = *std::ranges::max_element(p);
  for (std::size_t i = 0; i < p.size(); ++i) {
    at.k = keys[i];
    p[i] = rounded_weight(p[i], sum, top) * (dropout_.drops(at) ? 0.0f : 1.0f);
  }
  terms.resize(keys.size());
  for (int c = 0; c < width; ++c) {
    for (std::size_t i = 0; i < keys.size(); ++i) terms[i] = p[i] * (kv.v[keys[i] * width + c] * kv.scale_v[keys[i]]);
    const float kept = sum_in_pairs(terms.data(), terms.size()) * static_cast<float>(dropout_.factor());
    result.o[c] = round_to(spec_->out_dtype, kept);
  }
  if (goes_on_from_results(*spec_)) return continued(row, std::move(result), largest + std::log(sum));
  return result;
}

double Problem::output(const RowId& row, int column) const {
  return load_float(spec_->out_dtype, arguments_->o.data, query_offset(arguments_->o, row) + column);
}

std::int64_t Problem::statistic_offset(const Tensor& tensor, const RowId& row) const {
  const std::vector<std::int64_t> s = strides_of(tensor);
  if (spec_->layout == Layout::Packed) {
    const std::int64_t begin = packed(*spec_) ? static_cast<const std::int32_t*>(arguments_->offsets_q.data)[row.b] : 0;
    return row.h * s[0] + (begin + row.q) * s[1];
  }
  return row.b * s[0] + row.h * s[1] + row.q * s[2];
}

double Problem::statistic(const Tensor& tensor, const RowId& row) const {
  return static_cast<const float*>(tensor.data)[statistic_offset(tensor, row)];
}

}  // namespace flashjit::reference
