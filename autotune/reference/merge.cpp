// A merge is computed by its definition: its keys are the parts, whose logits are their LSE.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "autotune/reference/reference.h"
#include "compiler/spec/half.h"

namespace flashjit::reference {

// Returns whether the sequence has all keys of the prefix before its queries.
bool Problem::shares(std::int64_t b) const {
  const auto first = [&](const char* name) {
    return static_cast<const std::int32_t*>(arguments_->params.at(name).data);
  };
  return first("k_lens")[b] - q_len(b) >= first("shared_prefix")[0];
}

// Returns the largest `max_parts` of a row, over all parts that count.
double Problem::largest_of_parts(const RowId& row) const {
  const Tensor& tensor = arguments_->params.at("max_parts");
  const std::vector<std::int64_t> s = strides_of(tensor);
  const bool one = spec_->layout == Layout::Packed;
  const std::int64_t at = one ? row.h * s[1] + row.q * s[2] : row.b * s[1] + row.h * s[2] + row.q * s[3];
  const std::int64_t count = tensor.shape[0], first = spec_->shared_prefix && !shares(row.b) ? count - 1 : 0;
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t part = std::max<std::int64_t>(first, 0); part < count; ++part)
    largest = std::max<double>(largest, static_cast<const float*>(tensor.data)[at + part * s[0]]);
  return largest;
}

std::vector<float> Problem::part_lse(const RowId& row) const {
  const Tensor& tensor = arguments_->params.at("lse_parts");
  const std::vector<std::int64_t> s = strides_of(tensor);
  const bool one = spec_->layout == Layout::Packed;  // It has no batch.
  const std::int64_t at = one ? row.h * s[1] + row.q * s[2] : row.b * s[1] + row.h * s[2] + row.q * s[3];
  const bool own_only = spec_->shared_prefix && !shares(row.b);
  std::vector<float> lse;
  for (std::int64_t part = 0; part < tensor.shape[0]; ++part) {
    const bool counts = !own_only || part == tensor.shape[0] - 1;
    const float own = counts ? static_cast<const float*>(tensor.data)[at + part * s[0]] : -INFINITY;
    lse.push_back(spec_->lse == Lse::log2 ? own * std::numbers::ln2_v<float> : own);
  }
  return lse;
}

// Returns one row after the other, with zeros for parts that have seen nothing.
std::vector<float> Problem::part_rows(const RowId& row) const {
  const Tensor& tensor = arguments_->params.at("o_parts");
  const std::vector<std::int64_t> s = strides_of(tensor);
  const std::vector<float> lse = part_lse(row);
  const Layout layout = spec_->layout;
  const std::int64_t at = layout == Layout::Packed ? row.q * s[1] + row.h * s[2]
                          : layout == Layout::Bhsd ? row.b * s[1] + row.h * s[2] + row.q * s[3]
                                                   : row.b * s[1] + row.q * s[2] + row.h * s[3];
  std::vector<float> rows;
  for (std::int64_t part = 0; part < tensor.shape[0]; ++part) {
    for (int c = 0; c < spec_->d_v; ++c) {
      const bool seen = lse[part] != -INFINITY;
      rows.push_back(seen ? load_float(spec_->dtype, tensor.data, at + part * s[0] + c) : 0);
    }
  }
  return rows;
}

// Weights are not rounded, because they are no operand of a matrix product.
RecipeRow Problem::merged_recipe(const RowId& row) const {
  const std::vector<float> lse = part_lse(row), rows = part_rows(row);
  const int width = spec_->d_v;
  float largest = -INFINITY, sum = 0;
  for (const float own : lse) largest = std::isnan(own) || std::isnan(largest) ? NAN : std::max(largest, own);
  RecipeRow result;
  result.o.assign(width, 0);
  if (largest == -INFINITY) return result;
  for (const float own : lse) sum += std::exp(own - largest);
  for (int c = 0; c < width; ++c) {
    float o = 0;
    for (std::size_t part = 0; part < lse.size(); ++part)
      o += std::exp(lse[part] - largest) / sum * rows[part * width + c];
    result.o[c] = round_to(spec_->out_dtype, o);
  }
  return result;
}

}  // namespace flashjit::reference
