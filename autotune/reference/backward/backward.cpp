#include "autotune/reference/backward/backward.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "compiler/spec/half.h"

namespace flashjit::reference {
namespace {

constexpr double kNoWeight = -80;      // Below it P may be no normal number.
constexpr double kLargestError = 0.1;  // With a larger error of an exponent, P is noise.

struct Product {
  double exact = 0, error = 0;
  float recipe = 0;
};

template <class A, class B>
Product product(const std::vector<A>& a, const B* b, double factor = 1) {
  Product result;
  std::vector<float> terms(a.size());
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double term = static_cast<double>(a[i]) * b[i];
    result.exact += term;
    squares += term * term;
    terms[i] = static_cast<float>(a[i]) * static_cast<float>(b[i]);
  }
  result.error = 0x1p-24 * (std::fabs(result.exact) + 0.5 * std::sqrt(squares * static_cast<double>(a.size())));
  result.recipe = sum_in_pairs(terms.data(), terms.size()) * static_cast<float>(factor);
  result.exact *= factor;
  result.error *= factor;
  return result;
}

// A term adds x times the row y to a row.
struct Term {
  double x, error, in_common;
  float recipe;
  const float* y;
};

// Smaller numbers may count as 0 (SPEC.md), also if a scale makes terms that small before they are added up.
constexpr double kSmallestNormal = 0x1p-126;

// This follows the forward's add_variance. Errors of terms with the same value either are equal, so that they add up
// before they are squared, or they are independent. The larger variance counts.
void add_variance(const AttentionSpec& spec, Dtype out, std::vector<Term> terms, double factor, Gradient& row) {
  struct Column {
    double whole = 0, squares = 0;
  };
  const std::size_t width = row.exact.size();
  const double steps = static_cast<double>(terms.size()) * 0x1p-48 / 6;
  std::vector<double> in_common(width, 0);
  for (const Term& term : terms) {
    for (std::size_t c = 0; c < width; ++c) in_common[c] += term.in_common * term.y[c];
  }
  for (std::size_t c = 0; c < width; ++c) row.variance[c] = in_common[c] * in_common[c];
  std::ranges::sort(terms, {}, &Term::x);
  std::vector<Column> columns;
  for (auto first = terms.begin(); first != terms.end();) {
    const auto end = std::find_if(first, terms.end(), [&](const Term& term) { return term.x != first->x; });
    columns.assign(width, {});
    double error = 0;
    for (auto term = first; term != end; ++term) {
      error = std::max(error, term->error);
      for (std::size_t c = 0; c < width; ++c) {
        const double y = term->y[c];
        columns[c].whole += y, columns[c].squares += y * y;
      }
    }
    const double rounding = largest_rounding(spec.dtype, first->x);
    const double of_one = rounding * rounding / 3 + error * error;
    for (std::size_t c = 0; c < width; ++c) {
      const auto& [whole, squares] = columns[c];
      row.variance[c] += of_one * std::max(whole * whole, squares) + steps * first->x * first->x * squares;
    }
    first = end;
  }
  for (std::size_t c = 0; c < width; ++c) {
    const double rounding = largest_rounding(out, row.exact[c]);
    double lost = 0;
    for (const Term& term : terms) lost += kSmallestNormal * std::fabs(term.y[c]);
    row.variance[c] =
        row.variance[c] * factor * factor + rounding * rounding / 3 + steps * row.exact[c] * row.exact[c] + lost * lost;
  }
}

void add_up(const AttentionSpec& spec, Dtype out, const std::vector<Term>& terms, double factor, Gradient& row) {
  const std::size_t width = row.tainted.size();
  row.exact.assign(width, 0), row.variance.assign(width, 0), row.recipe.assign(width, 0);
  if (terms.empty()) return;
  std::vector<float> products(terms.size());
  for (std::size_t c = 0; c < width; ++c) {
    for (std::size_t i = 0; i < terms.size(); ++i) {
      row.exact[c] += terms[i].x * terms[i].y[c];
      products[i] = terms[i].recipe * terms[i].y[c];
    }
    row.exact[c] *= factor;
    row.recipe[c] = round_to(out, sum_in_pairs(products.data(), products.size()) * static_cast<float>(factor));
  }
  add_variance(spec, out, terms, factor, row);
}

void taint(Gradient& row, const float* y) {
  for (std::size_t c = 0; c < row.tainted.size(); ++c) {
    if (!std::isfinite(y[c])) row.tainted[c] = true;
  }
}

void taint(Gradient& row) { row.tainted.assign(row.tainted.size(), true); }

// Returns whether a kernel gets 0 when it multiplies P = 0 with a product of these. A kernel need not look for hidden
// keys in each tile, and slopes of scores may be NaN where products are.
bool is_finite_product(const std::vector<float>& a, const float* b, double offset = 0) {
  double sum = offset;
  for (std::size_t c = 0; c < a.size(); ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return std::isfinite(sum);
}

std::vector<float> singles(const std::vector<double>& values) { return {values.begin(), values.end()}; }

}  // namespace

// Differences over one and two steps together are exact up to the fifth derivative. A step of 2^-11 leaves 2^-44 of
// that, and 2^-42 of the score for rounding, which is far below fp32's 2^-24. If the two differences differ, the score
// bends between them, and the step shrinks until the bend is outside. A bend at s itself, or so near that fp32 may be
// on the other side of it, stays, and leaves half of the jump as the error.
Slope slope_of(const Semantics& semantics, const Position& at, const Dual& s, double error) {
  if (!semantics.score) return {};
  return slope_of([&](double moved) { return semantics.score(at, Dual(s.f, s.d + moved)).d; }, error);
}

// The steps in which a score is computed are rounded, too, and where the score is flat a rounding is a long way in s.
constexpr double kNear = 0x1p-19;

Slope slope_of(const std::function<double(double moved)>& score, double error) {
  const double here = score(0), least = std::max(kNear, 2 * error);
  for (double step = 0x1p-11;; step /= 16) {
    const double up = score(step), down = score(-step), up2 = score(2 * step), down2 = score(-2 * step);
    const double near = (up - down) / (2 * step), far = (up2 - down2) / (4 * step);
    const double bend = (up - 2 * here + down) / step, bend2 = (up2 - 2 * here + down2) / (2 * step);
    const double jump = std::fabs(2 * bend - bend2), tolerance = 1e-4 * (1 + std::fabs(near));
    const bool smooth = std::fabs(near - far) <= tolerance && jump <= tolerance;
    if (!smooth && step > least && std::isfinite(jump)) continue;
    const double value = (4 * near - far) / 3;
    const double moved = smooth ? std::fabs(bend / step) * error : std::fabs(near - far) + jump;
    return {value, moved + 0x1p-22 * (1 + std::fabs(value))};
  }
}

Backward::Query Backward::query(const RowId& row) const {
  const AttentionSpec& spec = problem_.spec();
  const Arguments& arguments = problem_.arguments();
  const double unit = spec.lse == Lse::log2 ? std::numbers::ln2 : 1;
  Query query;
  query.exact = problem_.query_row(arguments.q, row);
  query.q = singles(query.exact);
  query.d_o = singles(problem_.query_row(arguments.params.at("do"), row));
  query.lse = problem_.statistic(arguments.lse, row) * unit;
  const Product own = product(query.d_o, problem_.query_row(arguments.o, row).data());
  query.delta = own.exact, query.delta_error = own.error, query.recipe_delta = own.recipe;
  if (spec.dlse) {
    const double d_lse = problem_.statistic(arguments.params.at("dlse"), row) / unit;
    query.delta -= d_lse;
    query.delta_error += 0x1p-24 * (std::fabs(d_lse) + std::fabs(query.delta));
    query.recipe_delta -= static_cast<float>(d_lse);
  }
  return query;
}

Backward::Group Backward::group(std::int64_t b, std::int64_t hk) const {
  const AttentionSpec& spec = problem_.spec();
  const std::int64_t heads = spec.heads_q / spec.heads_kv;
  Group group{b, hk, problem_.keys_values(b, hk), {}, {}};
  for (std::int64_t h = hk * heads; h < (hk + 1) * heads; ++h) {
    for (std::int64_t q = 0; q < problem_.q_len(b); ++q) group.queries.push_back(query({b, h, q}));
  }
  if (!selects(spec)) return group;
  group.choosers.resize(static_cast<std::size_t>(problem_.k_len(b)));
  for (std::int64_t q = 0; q < problem_.q_len(b); ++q) {
    for (const std::int64_t k : problem_.keys_of({b, hk * heads, q}))
      group.choosers[static_cast<std::size_t>(k)].push_back(q);
  }
  return group;
}

Backward::Pair Backward::pair(const Query& query, const Position& at, const float* key, const float* value) const {
  const AttentionSpec& spec = problem_.spec();
  const Semantics& semantics = problem_.semantics();
  Pair result;
  // If a query saw NaN, its P is NaN even for keys that it does not see.
  result.unclear = std::isnan(query.lse) || query.lse == kInfinity;
  if (result.unclear) return result;
  const auto nothing = [&] {
    result.unclear = !is_finite_product(query.d_o, value, -query.delta) || !is_finite_product(query.q, key);
    return result;
  };
  if (semantics.visible && !semantics.visible(at)) return nothing();
  const Logit logit = logit_of(spec, semantics, at, query.exact.data(), key, 1, unit_of_sums(spec.dtype));
  if (logit.value == -kInfinity || query.lse == -kInfinity) return nothing();
  const double exponent = logit.value - query.lse;
  const double lse_error = 0x1p-24 * std::fabs(query.lse);
  const double error = std::hypot(logit.error, 0x1p-24 * std::fabs(logit.value), lse_error) + 0x1p-22;
  if (exponent + 8 * error < -200) return nothing();
  result.counts = true;
  result.p = std::exp(exponent);
  const Product dot = product(query.q, key);
  const float s = dot.recipe * static_cast<float>(spec.effective_scale());
  const Slope slope =
      slope_of(semantics, at, Dual(dot.exact * spec.effective_scale()), dot.error * std::fabs(spec.effective_scale()));
  result.dropped = problem_.dropout().drops(at);
  const Product dp = result.dropped ? Product() : product(query.d_o, value, problem_.dropout().factor());
  const double moved = dp.exact - query.delta, by_one = result.p * slope.value;
  result.ds = by_one * moved;
  result.s = Dual(s, dot.exact * spec.effective_scale());
  result.s_error = dot.error * std::fabs(spec.effective_scale());
  result.p_error = result.p * error;
  const double of_moved = std::hypot(dp.error, query.delta_error, 0x1p-23 * moved);
  result.ds_error = std::hypot(by_one * of_moved, result.ds * error, result.p * moved * std::min(slope.error, 1e30));
  result.in_common = by_one * query.delta_error + result.ds * lse_error;
  auto& by_logit = result.by_logit;
  by_logit.value = result.p * moved;
  by_logit.error = std::hypot(result.p * of_moved, by_logit.value * error);
  by_logit.in_common = result.p * query.delta_error + by_logit.value * lse_error;
  if (exponent < kNoWeight) {
    result.p_error += result.p, result.ds_error += std::fabs(result.ds);
    by_logit.error += std::fabs(by_logit.value);
  }
  result.unclear = !(error < kLargestError) || !std::isfinite(result.ds) || !std::isfinite(result.ds_error);
  const float scored = semantics.score ? semantics.score(at, Dual(s, s)).f : s;
  const float p = std::exp(scored - static_cast<float>(query.lse));
  by_logit.recipe = p * (dp.recipe - query.recipe_delta);
  result.recipe_p = round_to(spec.dtype, p);
  const double unit = problem_.dropout().factor();
  result.recipe_ds = round_to(spec.dtype, static_cast<float>(by_logit.recipe * slope.value / unit));
  result.ds /= unit, result.ds_error /= unit, result.in_common /= unit;
  return result;
}

double largest_rounding(Dtype dtype, double x) {
  return std::max(unit_roundoff(dtype) * std::fabs(x), dtype == Dtype::F16 ? 0x1p-25 : 0.0);
}

Gradient Backward::dq(const Group& group, std::int64_t head_in_group, std::int64_t q) const {
  const AttentionSpec& spec = problem_.spec();
  const std::int64_t heads = spec.heads_q / spec.heads_kv;
  const Query& query = group.queries[static_cast<std::size_t>(head_in_group * problem_.q_len(group.b) + q)];
  const RowId id{group.b, group.hk * heads + head_in_group, q};
  Position at = problem_.position(id);
  Gradient row;
  row.tainted.assign(static_cast<std::size_t>(spec.d_qk), false);
  std::vector<Term> terms;
  for (const std::int64_t k : problem_.keys_of(id)) {
    at.k = k;
    const float *key = &group.kv.k[at.k * spec.d_qk], *value = &group.kv.v[at.k * spec.d_v];
    const Pair pair = this->pair(query, at, key, value);
    if (pair.unclear) taint(row);
    else if (pair.counts) terms.push_back({pair.ds, pair.ds_error, pair.in_common, pair.recipe_ds, key});
    else taint(row, key);  // The pair is hidden, but may be in a tile that other queries see.
  }
  add_up(spec, spec.out_dq, terms, spec.effective_scale() * problem_.dropout().factor(), row);
  return row;
}

// Calls visit(query, position), by head, for the queries of a group that may see a key.
template <class Visit>
void Backward::each_query(const Group& group, std::int64_t k, const Visit& visit) const {
  const AttentionSpec& spec = problem_.spec();
  const std::int64_t heads = spec.heads_q / spec.heads_kv, q_len = problem_.q_len(group.b);
  const auto visit_one = [&](std::int64_t head, std::int64_t q) {
    visit(group.queries[static_cast<std::size_t>(head * q_len + q)],
          problem_.position({group.b, group.hk * heads + head, q}));
  };
  for (std::int64_t head = 0; head < heads; ++head) {
    if (selects(spec)) {
      for (const std::int64_t q : group.choosers[static_cast<std::size_t>(k)]) visit_one(head, q);
    } else {
      for (std::int64_t q = 0; q < q_len; ++q) visit_one(head, q);
    }
  }
}

// Makes the gradient of a row of K, of which V is the first columns, from those of both in fp32.
void add_values(Gradient& dk, const Gradient& dv, Dtype out) {
  for (std::size_t c = 0; c < dk.exact.size(); ++c) {
    if (c < dv.exact.size()) {
      dk.exact[c] += dv.exact[c], dk.variance[c] += dv.variance[c], dk.recipe[c] += dv.recipe[c];
      dk.tainted[c] = dk.tainted[c] || dv.tainted[c];
    }
    const double rounding = largest_rounding(out, dk.exact[c]);
    dk.variance[c] += rounding * rounding / 3;
    dk.recipe[c] = round_to(out, dk.recipe[c]);
  }
}

Backward::OfKey Backward::of_key(const Group& group, std::int64_t k) const {
  const AttentionSpec& spec = problem_.spec();
  OfKey row;
  row.dk.tainted.assign(static_cast<std::size_t>(spec.d_qk), false);
  row.dv.tainted.assign(static_cast<std::size_t>(spec.d_v), false);
  std::vector<Term> of_k, of_v;
  each_query(group, k, [&](const Query& query, Position at) {
    at.k = k;
    const Pair pair = this->pair(query, at, &group.kv.k[k * spec.d_qk], &group.kv.v[k * spec.d_v]);
    if (pair.unclear) {
      taint(row.dk), taint(row.dv);
    } else if (pair.counts) {
      of_k.push_back({pair.ds, std::hypot(pair.ds_error, pair.in_common), 0, pair.recipe_ds, query.q.data()});
      if (pair.dropped) taint(row.dv, query.d_o.data());
      else of_v.push_back({pair.p, pair.p_error, 0, pair.recipe_p, query.d_o.data()});
    } else {
      taint(row.dk, query.q.data()), taint(row.dv, query.d_o.data());
    }
  });
  const Dtype out_dk = spec.v_in_k ? Dtype::F32 : spec.out_dk, out_dv = spec.v_in_k ? Dtype::F32 : spec.out_dv;
  add_up(spec, out_dk, of_k, spec.effective_scale() * problem_.dropout().factor(), row.dk);
  add_up(spec, out_dv, of_v, problem_.dropout().factor(), row.dv);
  if (spec.v_in_k) add_values(row.dk, row.dv, spec.out_dk);
  return row;
}

}  // namespace flashjit::reference
