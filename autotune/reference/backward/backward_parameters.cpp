// The queries of a call add shares to the gradients of parameters and sinks.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "autotune/reference/backward/backward.h"
#include "compiler/spec/half.h"

namespace flashjit::reference {
namespace {

bool all_finite(const float* values, std::size_t count) {
  return std::all_of(values, values + count, [](float x) { return std::isfinite(x); });
}

// This is a term of 16 bits, and its largest error.
struct Rounded {
  float recipe = 0;
  double largest = 0;
};

// Returns the derivative of a score by an element that it reads, and how far that of a kernel may be off.
Slope derivative(const ElementReads& reads, const Position& at, const Dual& s, double s_error, const Element& element) {
  constexpr double kStep = 0x1p-12;
  const auto by = [&](double s_moved) {
    return slope_of([&](double moved) { return reads.score(at, Dual(s.f, s.d + s_moved), element, moved); }, 0);
  };
  Slope slope = by(0);
  slope.error += std::fabs(by(kStep).value - slope.value) / kStep * s_error;
  return slope;
}

}  // namespace

std::vector<Backward::Share> Backward::of_parameters(const Group& group, std::int64_t head_in_group,
                                                     std::int64_t q) const {
  const AttentionSpec& spec = problem_.spec();
  const std::int64_t heads = spec.heads_q / spec.heads_kv;
  const Query& query = group.queries[static_cast<std::size_t>(head_in_group * problem_.q_len(group.b) + q)];
  const ElementReads reads(spec, problem_.arguments());
  const std::vector<int> wanted = params_with_gradients(spec);
  const bool clean = all_finite(query.q.data(), query.q.size()) && all_finite(query.d_o.data(), query.d_o.size());
  const RowId id{group.b, group.hk * heads + head_in_group, q};
  Position at = problem_.position(id);
  std::vector<Share> shares;
  std::vector<double> in_common;
  std::vector<Rounded> rounded;
  std::map<std::pair<std::size_t, std::int64_t>, std::size_t> numbers;
  for (const std::int64_t k : problem_.keys_of(id)) {
    at.k = k;
    const float *key = &group.kv.k[at.k * spec.d_qk], *value = &group.kv.v[at.k * spec.d_v];
    const Pair pair = this->pair(query, at, key, value);
    const bool tainted = pair.unclear || !clean || !all_finite(key, static_cast<std::size_t>(spec.d_qk)) ||
                         !all_finite(value, static_cast<std::size_t>(spec.d_v));
    if (!pair.counts && !tainted) continue;
    for (const Element& element : reads.of(at, pair.s)) {
      if (std::ranges::count(wanted, static_cast<int>(element.param)) == 0) continue;
      const auto [number, is_new] = numbers.emplace(std::pair(element.param, element.number), shares.size());
      if (is_new) shares.push_back({.element = element}), in_common.push_back(0), rounded.emplace_back();
      Share& share = shares[number->second];
      share.terms += 1;
      share.tainted = share.tainted || tainted;
      if (tainted) continue;
      const Slope slope = derivative(reads, at, pair.s, pair.s_error, element);
      const double term = pair.by_logit.value * slope.value;
      const double error = std::hypot(pair.by_logit.error * slope.value, pair.by_logit.value * slope.error);
      share.exact += term;
      share.squares += term * term;
      share.recipe += pair.by_logit.recipe * static_cast<float>(slope.value);
      share.variance += error * error;
      in_common[number->second] += pair.by_logit.in_common * slope.value;
      const double kept = problem_.dropout().factor();
      rounded[number->second] = {round_to(spec.dtype, static_cast<float>(pair.by_logit.recipe / kept)) *
                                     static_cast<float>(kept * slope.value),
                                 largest_rounding(spec.dtype, pair.by_logit.value / kept) * kept * slope.value};
      if (!std::isfinite(term) || !std::isfinite(error)) share.tainted = true;
    }
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    Share& share = shares[i];
    share.variance += in_common[i] * in_common[i];
    if (share.terms > 1 || size_of(spec.params[share.element.param].dtype) > 2) continue;
    share.recipe = rounded[i].recipe;
    share.variance += rounded[i].largest * rounded[i].largest / 3;
  }
  return shares;
}

Backward::Share Backward::of_sink(const Group& group, std::int64_t head_in_group, std::int64_t q) const {
  const AttentionSpec& spec = problem_.spec();
  const std::int64_t h = group.hk * (spec.heads_q / spec.heads_kv) + head_in_group;
  const Query& query = group.queries[static_cast<std::size_t>(head_in_group * problem_.q_len(group.b) + q)];
  const double sink = static_cast<const float*>(problem_.arguments().sink.data)[h];
  Share share{.element = {0, h}, .terms = 1};
  if (query.lse == -kInfinity) return share;
  const double p = std::exp(sink - query.lse);
  const double error = 0x1p-24 * std::hypot(sink, query.lse) + 0x1p-22;
  share.exact = -p * query.delta;
  share.squares = share.exact * share.exact;
  // A weight may become 0 below the least normal number of fp32.
  const double least = 0x1p-126 * query.delta;
  share.variance = std::pow(p * query.delta_error, 2) + std::pow(share.exact * error, 2) + least * least;
  share.recipe = -std::exp(static_cast<float>(sink) - static_cast<float>(query.lse)) * query.recipe_delta;
  share.tainted = !std::isfinite(share.exact) || !(error < 0.1);
  return share;
}

}  // namespace flashjit::reference
