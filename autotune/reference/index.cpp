#include "autotune/reference/index.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "runtime/launch/library_thread.h"

namespace flashjit::reference {
namespace {

// Matrix units cut off bits of a sum. That makes the sum smaller by a share of it (of_sum), and adds an error with a
// share of the terms (of_terms), which is as often positive as negative. The second is seldom three times as large as
// the sum of squares over all heads predicts.
struct ErrorOfSums {
  double of_sum, of_terms;
};
constexpr ErrorOfSums kWideSums = {0x1p-20, 0x1p-20}, kNarrowSums = {0x1p-10, 0x1p-13};
constexpr double kSeldom = 3;

struct ScoredKey {
  std::int64_t number = 0;  // number of its row, as lists count rows
  bool visible = false;
  double exact = -kInfinity, recipe = -kInfinity, limit = 0;
};

struct TallyOfScores {
  double worst = 0, limit = 0, recipe_worst = 0, squares = 0, recipe_squares = 0, limit_squares = 0, norm = 0;
  std::string wrong;

  void add(const TallyOfScores& other) {
    worst = std::max(worst, other.worst);
    limit = std::max(limit, other.limit);
    recipe_worst = std::max(recipe_worst, other.recipe_worst);
    squares += other.squares;
    recipe_squares += other.recipe_squares;
    limit_squares += other.limit_squares;
    norm += other.norm;
    if (wrong.empty()) wrong = other.wrong;
  }
};

// Finds a row of [batch, query, head, ...]. Packed tokens have no batch.
std::int64_t offset_of_query(const Problem& problem, const Tensor& tensor, const RowId& row, std::int64_t head) {
  const std::vector<std::int64_t> s = strides_of(tensor);
  if (problem.spec().layout != Layout::Packed) return row.b * s[0] + row.q * s[1] + head * s[2];
  return (static_cast<const std::int32_t*>(problem.arguments().offsets_q.data)[row.b] + row.q) * s[0] + head * s[1];
}

std::string name_of_row(const RowId& row, std::int64_t hk) {
  return fmt::format("batch {}, KV head {}, query {}", row.b, hk, row.q);
}

// Computes the scores of a row, whose head is the first of its KV head.
std::vector<ScoredKey> scores_of(const Problem& problem, const RowId& row, const Problem::KeysValues& kv) {
  const AttentionSpec& spec = problem.spec();
  const std::int64_t hk = problem.kv_head(row.h), keys = problem.k_len(row.b);
  const int d = spec.d_qk, group = spec.heads_q / spec.heads_kv;
  const ErrorOfSums error = size_of(spec.dtype) == 1 ? kNarrowSums : kWideSums;
  const Tensor& weights = problem.arguments().params.at("weights");
  std::vector<std::vector<double>> queries;
  std::vector<float> of_head;
  for (int i = 0; i < group; ++i) {
    queries.push_back(problem.query_row(problem.arguments().q, {row.b, row.h + i, row.q}));
    of_head.push_back(static_cast<const float*>(weights.data)[offset_of_query(problem, weights, row, row.h + i)]);
  }
  Position at = problem.position(row);
  std::vector<ScoredKey> scored(static_cast<std::size_t>(keys));
  for (at.k = 0; at.k < keys; ++at.k) {
    ScoredKey& key = scored[static_cast<std::size_t>(at.k)];
    key.number = problem.row_number(row.b, hk, at.k);
    key.visible = !problem.semantics().visible || problem.semantics().visible(at);
    if (!key.visible) continue;
    double sum = 0, size = 0, squares = 0;
    float recipe = 0;
    for (int i = 0; i < group; ++i) {
      double product = 0, of_products = 0;
      float rounded = 0;
      for (int c = 0; c < d; ++c) {
        const double term = queries[i][c] * kv.k[at.k * d + c];
        product += term, of_products += std::fabs(term), rounded += static_cast<float>(term);
      }
      sum += product > 0 ? product * of_head[i] : 0.0 * of_head[i];
      recipe += (rounded > 0 ? rounded : 0.0f) * of_head[i];
      size += std::max(product, 0.0) * std::fabs(of_head[i]);
      squares += std::pow(of_products * of_head[i], 2);
    }
    key.exact = sum * kv.scale_k[at.k];
    key.recipe = recipe * kv.scale_k[at.k];
    key.limit = (error.of_sum * size + kSeldom * error.of_terms * std::sqrt(squares)) * std::fabs(kv.scale_k[at.k]);
  }
  return scored;
}

void check_scores(const Problem& problem, const RowId& row, const std::vector<ScoredKey>& scored,
                  TallyOfScores& tally) {
  const Tensor& tensor = problem.arguments().params.at("scores");
  const std::int64_t hk = problem.kv_head(row.h), begin = offset_of_query(problem, tensor, row, hk);
  const std::int64_t step = strides_of(tensor).back();
  for (std::int64_t k = 0; k < tensor.shape.back(); ++k) {
    const double ours = static_cast<const float*>(tensor.data)[begin + k * step];
    const ScoredKey key = k < std::ssize(scored) ? scored[static_cast<std::size_t>(k)] : ScoredKey();
    const bool is_same = ours == key.exact || (std::isnan(ours) && std::isnan(key.exact));
    const double error = is_same ? 0 : std::fabs(ours - key.exact);
    if (!(error <= key.limit) && tally.wrong.empty() && std::isfinite(key.limit)) {
      tally.wrong =
          fmt::format("scores are {:.6g} for {:.6g}{}, the limit is {:.4g} apart ({}, key {})", ours, key.exact,
                      key.visible ? "" : ", as the key is hidden", key.limit, name_of_row(row, hk), k);
    }
    if (!key.visible || !std::isfinite(key.exact) || !std::isfinite(error)) continue;
    const double of_recipe = std::fabs(key.recipe - key.exact);
    tally.add({error,
               key.limit,
               of_recipe,
               error * error,
               of_recipe * of_recipe,
               key.limit * key.limit,
               key.exact * key.exact,
               {}});
  }
}

// Follows the list and the keys side by side, because both are in order.
std::string wrong_list(const Problem& problem, const RowId& row, const std::vector<ScoredKey>& scored) {
  const int room = problem.spec().selected;
  const std::int64_t hk = problem.kv_head(row.h);
  const Tensor& index = problem.arguments().params.at("key_index");
  const auto* const list = static_cast<const std::int32_t*>(index.data) + offset_of_query(problem, index, row, hk);
  const auto can_be_listed = [](const ScoredKey& key) { return key.visible && key.exact != -kInfinity; };
  const std::int64_t there = std::ranges::count_if(scored, can_be_listed), count = std::min<std::int64_t>(there, room);
  if (const auto given = problem.arguments().params.find("key_count"); given != problem.arguments().params.end()) {
    const std::int64_t ours =
        static_cast<const std::int32_t*>(given->second.data)[offset_of_query(problem, given->second, row, hk)];
    if (ours != count) return fmt::format("key_count is {} for {} ({})", ours, count, name_of_row(row, hk));
  }
  double least = kInfinity, largest = -kInfinity;  // bounds of the scores of listed keys, and of the others
  auto key = scored.begin();
  const auto value = [](const ScoredKey& of, double sign) {
    return std::isnan(of.exact) ? kInfinity : of.exact + sign * of.limit;
  };
  const auto pass = [&] {
    if (can_be_listed(*key)) largest = std::max(largest, value(*key, -1));
    ++key;
  };
  for (std::int64_t i = 0; i < room; ++i) {
    if (i >= count) {
      if (list[i] != -1)
        return fmt::format("key_index[{}] is {} behind {} keys ({})", i, list[i], count, name_of_row(row, hk));
      continue;
    }
    while (key != scored.end() && (key->number != list[i] || !can_be_listed(*key))) pass();
    if (key == scored.end()) {
      return fmt::format("key_index[{}] is {}, no row that the query sees and that follows those before it ({})", i,
                         list[i], name_of_row(row, hk));
    }
    least = std::min(least, value(*key++, 1));
  }
  while (key != scored.end()) pass();
  if (least >= largest) return {};
  return fmt::format("key_index has a key whose score is at most {:.6g}, and not one of at least {:.6g} ({})", least,
                     largest, name_of_row(row, hk));
}

// Chooses as many rows as may be checked, among rows with the first head of a KV head.
std::vector<RowId> rows_to_check(const Problem& problem, const CompareOptions& options, std::int64_t& all) {
  const AttentionSpec& spec = problem.spec();
  const int group = spec.heads_q / spec.heads_kv;
  std::vector<RowId> rows;
  for (const RowId& row : problem.rows()) {
    if (row.h % group == 0) rows.push_back(row);
  }
  all = std::ssize(rows);
  std::mt19937_64 random(options.seed);
  std::shuffle(rows.begin(), rows.end(), random);
  double work = 0;
  std::size_t chosen = 0;
  for (; chosen < rows.size() && (chosen < 16 || work < options.work); ++chosen)
    work += static_cast<double>(problem.k_len(rows[chosen].b)) * group * spec.d_qk * 4;
  rows.resize(chosen);
  std::ranges::sort(rows, {}, [](const RowId& row) { return std::tuple(row.b, row.h, row.q); });
  return rows;
}

}  // namespace

Comparison compare_index(const Problem& problem, const CompareOptions& options) {
  Comparison result;
  const std::vector<RowId> rows = rows_to_check(problem, options, result.rows);
  result.rows_checked = std::ssize(rows);
  std::vector<TallyOfScores> tallies(static_cast<std::size_t>(std::max(1, options.threads)));
  const auto check = [&](std::size_t thread) {
    TallyOfScores& tally = tallies[thread];
    Problem::KeysValues kv;
    std::int64_t b = -1, hk = -1;
    for (std::size_t i = rows.size() * thread / tallies.size(); i < rows.size() * (thread + 1) / tallies.size(); ++i) {
      const RowId& row = rows[i];
      if (row.b != b || problem.kv_head(row.h) != hk) kv = problem.keys_values(row.b, problem.kv_head(row.h));
      b = row.b, hk = problem.kv_head(row.h);
      const std::vector<ScoredKey> scored = scores_of(problem, row, kv);
      if (writes_scores(problem.spec())) check_scores(problem, row, scored, tally);
      else if (tally.wrong.empty()) tally.wrong = wrong_list(problem, row, scored);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t thread = 1; thread < tallies.size(); ++thread)
      threads.push_back(library_thread([&, thread] { check(thread); }));
    check(0);
  }
  TallyOfScores all;
  for (const TallyOfScores& tally : tallies) all.add(tally);
  const double norm = all.norm > 0 ? std::sqrt(all.norm) : 1;
  result.max_abs_err = all.worst;
  result.max_abs_limit = all.limit;
  result.recipe_max_abs_err = all.recipe_worst;
  result.rel_err = std::sqrt(all.squares) / norm;
  result.rel_limit = std::sqrt(all.limit_squares) / norm;
  result.recipe_rel_err = std::sqrt(all.recipe_squares) / norm;
  result.problem = all.wrong;
  result.ok = result.problem.empty();
  return result;
}

}  // namespace flashjit::reference
