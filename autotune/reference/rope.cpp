#include "autotune/reference/rope.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autotune/reference/reference.h"
#include "compiler/spec/half.h"

namespace flashjit::reference {
namespace {

struct Angle {
  double cos = 1, sin = 0;
};

Angle angle_of(const AttentionSpec& spec, const Arguments& arguments, std::int64_t position, int pair) {
  if (spec.rope_base == 0) {
    const Tensor &cos = arguments.params.at("cos"), &sin = arguments.params.at("sin");
    const std::int64_t at = position * cos.shape[1] + pair;
    return {static_cast<const float*>(cos.data)[at], static_cast<const float*>(sin.data)[at]};
  }
  const long double frequency = std::pow(static_cast<long double>(spec.rope_base), -2.0L * pair / spec.rope_dims);
  const long double radians = static_cast<long double>(position) * frequency;
  return {static_cast<double>(std::cos(radians)), static_cast<double>(std::sin(radians))};
}

}  // namespace

std::vector<double> turned(const AttentionSpec& spec, const Arguments& arguments, std::vector<double> row,
                           std::int64_t position) {
  const int pairs = spec.rope == Rope::none ? 0 : spec.rope_dims / 2;
  const std::vector<double> from = row;
  for (int pair = 0; pair < pairs; ++pair) {
    const int first = spec.rope_from + (spec.rope == Rope::half ? pair : 2 * pair);
    const int second = first + (spec.rope == Rope::half ? pairs : 1);
    const auto [cos, sin] = angle_of(spec, arguments, position, pair);
    row[first] = from[first] * cos - from[second] * sin;
    row[second] = from[second] * cos + from[first] * sin;
  }
  return row;
}

void turn_keys(const AttentionSpec& spec, const Arguments& arguments, std::vector<float>& keys) {
  const auto width = static_cast<std::size_t>(spec.d_qk);
  for (std::size_t k = 0; spec.rope != Rope::none && k * width < keys.size(); ++k) {
    float* const key = keys.data() + k * width;
    const std::vector<double> row = turned(spec, arguments, {key, key + width}, static_cast<std::int64_t>(k));
    std::ranges::transform(row, key, [](double x) { return static_cast<float>(x); });
  }
}

std::int64_t query_position(const AttentionSpec& spec, std::int64_t q_len, std::int64_t k_len, std::int64_t q) {
  return std::max<std::int64_t>(spec.alignment == Alignment::BottomRight ? k_len - q_len + q : q, 0);
}

std::vector<double> Problem::query(const RowId& row) const {
  std::vector<double> query = elements(arguments_->q, query_offset(arguments_->q, row), spec_->d_qk);
  if (spec_->rope == Rope::none) return query;
  query = turned(*spec_, *arguments_, std::move(query), query_position(*spec_, q_len(row.b), k_len(row.b), row.q));
  for (double& x : query) {  // A rotated query has the range of the dtype, too.
    if (const float held = round_to(spec_->dtype, static_cast<float>(x)); !std::isfinite(held)) x = held;
  }
  return query;
}

}  // namespace flashjit::reference
