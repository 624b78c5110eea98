// Gradients have an error rule of their own (compare.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <thread>

#include "autotune/reference/backward/backward.h"
#include "autotune/reference/compare.h"
#include "compiler/spec/half.h"
#include "fmt/format.h"
#include "runtime/launch/library_thread.h"

namespace flashjit::reference {
namespace {

constexpr std::array kNames = {"dq", "dk", "dv"};
constexpr double kRowDeviations = 5;  // times the error of one row, besides twice the recipe's

// An item is a row of dQ, or of dK and dV.
struct Item {
  bool key;
  std::int64_t head, token;  // `head` counts in the group, `token` in the sequence.
};

using Tallies = std::array<GradientTally, kNames.size()>;

}  // namespace

void GradientTally::add(const GradientTally& tally) {
  if (tally.worst > worst) worst = tally.worst, worst_element = tally.worst_element;
  if (tally.row > row) row = tally.row, worst_row = tally.worst_row;
  recipe_worst = std::max(recipe_worst, tally.recipe_worst);
  deviation = std::max(deviation, tally.deviation);
  squares += tally.squares, recipe_squares += tally.recipe_squares;
  expected_squares += tally.expected_squares, norm += tally.norm, rows += tally.rows;
  if (special.empty()) special = tally.special;
}

void GradientTally::check_row(const std::vector<double>& ours, const Gradient& row, const std::string& row_name) {
  GradientTally& tally = *this;
  double squares = 0, recipe_squares = 0, expected = 0;
  for (std::size_t c = 0; c < ours.size(); ++c) {
    // If the truth or the recipe's number is not finite, the range of the dtype decides and any number is right.
    if (row.tainted[c] || !std::isfinite(row.exact[c]) || !std::isfinite(row.recipe[c])) continue;
    if (!std::isfinite(ours[c])) {
      if (tally.special.empty())
        tally.special =
            fmt::format("{} where the reference is {:.6g} ({}, column {})", ours[c], row.exact[c], row_name, c);
      continue;
    }
    const double error = std::fabs(ours[c] - row.exact[c]), recipe_error = std::fabs(row.recipe[c] - row.exact[c]);
    if (error > tally.worst) {
      tally.worst = error;
      tally.worst_element = fmt::format("{}, column {}: {:.6g}", row_name, c, ours[c]);
    }
    tally.recipe_worst = std::max(tally.recipe_worst, recipe_error);
    tally.deviation = std::max(tally.deviation, std::sqrt(row.variance[c]));
    squares += error * error, recipe_squares += recipe_error * recipe_error, expected += row.variance[c];
    tally.norm += row.exact[c] * row.exact[c];
  }
  tally.squares += squares, tally.recipe_squares += recipe_squares, tally.expected_squares += expected;
  tally.rows += 1;
  const double limit = std::max(2 * std::sqrt(recipe_squares), kRowDeviations * std::sqrt(expected));
  const double ratio = squares == 0 ? 0 : limit == 0 ? INFINITY : std::sqrt(squares) / limit;
  if (ratio > tally.row) tally.row = ratio, tally.worst_row = row_name;
}

namespace {

// The gradient is added to what the tensor held before the call.
Gradient added(Gradient row, const std::vector<double>& there) {
  for (std::size_t c = 0; c < there.size(); ++c) {
    row.exact[c] += there[c];
    row.recipe[c] = static_cast<float>(row.recipe[c] + there[c]);
    row.variance[c] += std::pow(unit_roundoff(Dtype::F32) * row.exact[c], 2) / 3;
  }
  return row;
}

void check_item(const Problem& problem, const Backward& backward, const Backward::Group& group, const Item& item,
                Tallies& tallies) {
  const auto& params = problem.arguments().params;
  const bool adds = problem.spec().accumulate, has_dv = !problem.spec().v_in_k;
  if (item.key) {
    Backward::OfKey row = backward.of_key(group, item.token);
    const std::string row_name = fmt::format("batch {}, KV head {}, key {}", group.b, group.hk, item.token);
    if (adds) {
      row.dk = added(row.dk, problem.key_row(params.at(earlier("dk")), group.b, group.hk, item.token));
      if (has_dv) row.dv = added(row.dv, problem.key_row(params.at(earlier("dv")), group.b, group.hk, item.token));
    }
    tallies[1].check_row(problem.key_row(params.at("dk"), group.b, group.hk, item.token), row.dk, row_name);
    if (has_dv) tallies[2].check_row(problem.key_row(params.at("dv"), group.b, group.hk, item.token), row.dv, row_name);
    return;
  }
  const std::int64_t heads = problem.spec().heads_q / problem.spec().heads_kv;
  const RowId id{group.b, group.hk * heads + item.head, item.token};
  Gradient row = backward.dq(group, item.head, item.token);
  if (adds) row = added(row, problem.query_row(params.at(earlier("dq")), id));
  tallies[0].check_row(problem.query_row(params.at("dq"), id), row,
                       fmt::format("batch {}, head {}, query {}", id.b, id.h, id.q));
}

// Chooses all rows of a group, or both ends of each side and one row of every stretch, because tiles are ragged at the
// ends.
std::vector<Item> choose_items(std::int64_t heads, std::int64_t q_len, std::int64_t k_len, double share,
                               std::mt19937_64& random) {
  std::vector<Item> items;
  const auto choose = [&](bool key, std::int64_t count) {
    const auto item_of = [&](std::int64_t i) { return key ? Item{true, 0, i} : Item{false, i / q_len, i % q_len}; };
    const auto wanted = share >= 1 ? count : static_cast<std::int64_t>(std::ceil(static_cast<double>(count) * share));
    if (wanted < count && count > 0) items.push_back(item_of(0)), items.push_back(item_of(count - 1));
    for (std::int64_t i = 0; i < wanted; ++i) {
      const std::int64_t begin = count * i / wanted, end = count * (i + 1) / wanted;
      items.push_back(item_of(begin + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end - begin))));
    }
  };
  choose(false, heads * q_len);
  choose(true, k_len);
  return items;
}

double work_of(const Problem& problem) {
  const AttentionSpec& spec = problem.spec();
  double pairs = 0;
  for (std::int64_t b = 0; b < problem.batch(); ++b)
    pairs += static_cast<double>(problem.q_len(b)) * static_cast<double>(problem.k_len(b)) * spec.heads_q;
  // The reference and the recipe take each pair: two products in two precisions, the sums, and scores at seven
  // arguments.
  return 2 * pairs * (6 * (spec.d_qk + spec.d_v) + (problem.semantics().score ? 512 : 64));
}

}  // namespace

void judge(const std::string& name, const GradientTally& all, Comparison& result) {
  const double max_limit = std::max(2 * all.recipe_worst, 4 * all.deviation);
  const double norm = all.norm > 0 ? std::sqrt(all.norm) : 1;
  const double few = 1 + 1 / std::sqrt(std::max(1.0, all.rows));
  const double rel = std::sqrt(all.squares) / norm, recipe_rel = std::sqrt(all.recipe_squares) / norm;
  const double rel_limit = 2 * std::max(recipe_rel, few * std::sqrt(all.expected_squares) / norm);
  const auto share = [](double error, double limit) { return error == 0 ? 0 : limit > 0 ? error / limit : INFINITY; };
  // The reported numbers are those of the tensor that is nearest to its limit.
  if (share(rel, rel_limit) >= share(result.rel_err, result.rel_limit))
    result.rel_err = rel, result.rel_limit = rel_limit, result.recipe_rel_err = recipe_rel;
  if (share(all.worst, max_limit) >= share(result.max_abs_err, result.max_abs_limit))
    result.max_abs_err = all.worst, result.max_abs_limit = max_limit, result.recipe_max_abs_err = all.recipe_worst;
  result.row_err = std::max(result.row_err, all.row);
  if (!result.problem.empty()) return;
  if (!all.special.empty()) {
    result.problem = fmt::format("{} is {}", name, all.special);
  } else if (all.worst > max_limit) {
    result.problem =
        fmt::format("{} differs by {:.4g}, the limit is {:.4g} ({})", name, all.worst, max_limit, all.worst_element);
  } else if (all.row > 1) {
    result.problem = fmt::format("{}: the error of a row is {:.3g} of its limit ({})", name, all.row, all.worst_row);
  } else if (rel > rel_limit) {
    result.problem = fmt::format("{} has relative error {:.4g}, the limit is {:.4g}", name, rel, rel_limit);
  }
}

Comparison compare_gradients(const Problem& problem, const CompareOptions& options) {
  const AttentionSpec& spec = problem.spec();
  const std::int64_t heads = spec.heads_q / spec.heads_kv;
  const Backward backward(problem);
  const double share = options.work / std::max(work_of(problem), 1.0);
  std::mt19937_64 random(options.seed);
  std::vector<Tallies> tallies(static_cast<std::size_t>(std::max(1, options.threads)));
  Comparison result;
  for (std::int64_t b = 0; b < problem.batch(); ++b) {
    for (std::int64_t hk = 0; hk < spec.heads_kv; ++hk) {
      const std::vector<Item> items = choose_items(heads, problem.q_len(b), problem.k_len(b), share, random);
      result.rows += heads * problem.q_len(b) + problem.k_len(b);
      result.rows_checked += static_cast<std::int64_t>(items.size());
      if (items.empty()) continue;
      const Backward::Group group = backward.group(b, hk);
      const auto work = [&](std::size_t thread) {
        for (std::size_t i = thread; i < items.size(); i += tallies.size())
          check_item(problem, backward, group, items[i], tallies[thread]);
      };
      std::vector<std::jthread> threads;
      for (std::size_t thread = 1; thread < tallies.size(); ++thread)
        threads.push_back(library_thread([&, thread] { work(thread); }));
      work(0);
    }
  }
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    GradientTally all;
    for (const Tallies& tally : tallies) all.add(tally[i]);
    judge(kNames[i], all, result);
  }
  compare_parameter_gradients(problem, options, result);
  result.ok = result.problem.empty();
  return result;
}

}  // namespace flashjit::reference
