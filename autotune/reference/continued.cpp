// Calls may go on from the results of others (`accumulate`), and their rows may be a part of a longer sequence
// (`places`).
#include <algorithm>
#include <cmath>
#include <numbers>

#include "autotune/reference/reference.h"
#include "compiler/spec/half.h"

namespace flashjit::reference {
namespace {

constexpr double kWeightError = 0x1p-21;  // error of a weight that is exp of a difference of two numbers of fp32

}  // namespace

std::string earlier(std::string_view name) { return "earlier " + std::string(name); }

double Problem::earlier_lse(const RowId& row) const {
  const double unit = spec_->lse == Lse::log2 ? std::numbers::ln2 : 1;
  return statistic(arguments_->params.at(earlier("lse")), row) * unit;
}

std::vector<double> Problem::earlier_output(const RowId& row) const {
  return query_row(arguments_->params.at(earlier("o")), row);
}

ExactRow Problem::continued(const RowId& row, ExactRow own) const {
  const std::vector<double> there = earlier_output(row);
  const double before = earlier_lse(row);
  if (own.lse == -kInfinity) {
    own.o = there, own.lse = before;
    std::ranges::fill(own.variance, 0);
    return own;
  }
  const double top = std::isnan(own.lse) || std::isnan(before) ? NAN : std::max(own.lse, before);
  const double of_own = std::exp(own.lse - top), of_earlier = before == -kInfinity ? 0 : std::exp(before - top);
  const double sum = of_own + of_earlier;
  own.lse = top + std::log(sum);
  for (std::size_t c = 0; c < own.o.size(); ++c) {
    const double kept = of_earlier == 0 ? 0 : of_earlier / sum * there[c];
    own.o[c] = of_own / sum * own.o[c] + kept;
    own.variance[c] *= of_own / sum * of_own / sum;
    own.variance[c] += kWeightError * kWeightError * (own.o[c] * own.o[c] + kept * kept);
  }
  return own;
}

RecipeRow Problem::continued(const RowId& row, RecipeRow own, float lse) const {
  const std::vector<double> there = earlier_output(row);
  const auto before = static_cast<float>(earlier_lse(row));
  if (lse == -INFINITY) return {there};
  const float top = std::max(lse, before);
  const float of_own = std::exp(lse - top), of_earlier = before == -INFINITY ? 0 : std::exp(before - top);
  for (std::size_t c = 0; c < own.o.size(); ++c) {
    const float kept = of_earlier == 0 ? 0 : of_earlier * static_cast<float>(there[c]);
    own.o[c] = (of_own * static_cast<float>(own.o[c]) + kept) / (of_own + of_earlier);
  }
  return own;
}

void Problem::shift_positions() {
  const auto number = [&](const char* name, std::int64_t usual) {
    const auto found = arguments_->scalars.find(name);
    return found == arguments_->scalars.end() ? usual : static_cast<std::int64_t>(found->second);
  };
  const std::int64_t queries = batch_ > 0 ? q_len(0) : 0, keys = batch_ > 0 ? k_len(0) : 0;
  const auto placed = [q_begin = number("q_begin", 0), q_step = number("q_step", 1),
                       q_total = number("q_total", queries), k_begin = number("k_begin", 0),
                       k_step = number("k_step", 1), k_total = number("k_total", keys)](Position at) {
    at.q = q_begin + at.q * q_step, at.q_len = q_total;
    at.k = k_begin + at.k * k_step, at.k_len = k_total;
    return at;
  };
  if (semantics_.visible)
    semantics_.visible = [placed, inner = semantics_.visible](const Position& at) { return inner(placed(at)); };
  if (semantics_.score)
    semantics_.score = [placed, inner = semantics_.score](const Position& at, Dual s) { return inner(placed(at), s); };
}

}  // namespace flashjit::reference
