#include "autotune/reference/compare.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <thread>

#include "autotune/reference/narrowed.h"
#include "autotune/reference/index.h"
#include "autotune/reference/quantize.h"
#include "compiler/spec/half.h"
#include "fmt/format.h"
#include "runtime/launch/library_thread.h"

namespace flashjit::reference {
namespace {

// A tally holds what one thread found.
struct Tally {
  double worst = 0, recipe_worst = 0, deviation = 0;
  double squares = 0, recipe_squares = 0, expected_squares = 0, norm = 0;
  double lse = 0, max_logit = 0;
  RowId worst_row;
  int worst_column = 0;
  std::string special;  // the first wrong inf, NaN, LSE or max logit
};

std::string name(const RowId& row) { return fmt::format("batch {}, head {}, query {}", row.b, row.h, row.q); }

void check_element(const Problem& problem, const RowId& row, int c, const ExactRow& exact, double recipe,
                   Tally& tally) {
  if (exact.tainted[c]) return;
  const double ours = problem.output(row, c), truth = exact.o[c];
  if (!std::isfinite(truth) || !std::isfinite(recipe)) {
    // Where float64 and the recipe disagree about being finite, the range of the dtype decides and either is right.
    const bool both = !std::isfinite(truth) && !std::isfinite(recipe);
    const bool wrong = both && (std::isnan(truth) && std::isnan(recipe) ? !std::isnan(ours) : std::isfinite(ours));
    if (wrong && tally.special.empty()) {
      tally.special = fmt::format("o is {} where the reference is {} ({}, column {})", ours, truth, name(row), c);
    }
    return;
  }
  if (!std::isfinite(ours)) {
    // This may come from a key whose weight the recipe loses and whose V is far beyond the dtype's range.
    const bool beyond = round_to(problem.spec().out_dtype, static_cast<float>(truth)) == ours;
    if (!beyond && tally.special.empty()) {
      tally.special = fmt::format("o is {} where the reference is {:.6g} ({}, column {})", ours, truth, name(row), c);
    }
    return;
  }
  // Another way to round an element of Q or K to 8 bits moves this row alone, and does not raise the limit of all rows.
  constexpr double kDoubts = 8;
  const double doubt = exact.o_doubt.empty() ? 0 : kDoubts * exact.o_doubt[c];
  const double error = std::max(0.0, std::fabs(ours - truth) - doubt), recipe_error = std::fabs(recipe - truth);
  if (error > tally.worst) tally.worst = error, tally.worst_row = row, tally.worst_column = c;
  tally.recipe_worst = std::max(tally.recipe_worst, recipe_error);
  tally.deviation = std::max(tally.deviation, std::sqrt(exact.variance[c]));
  tally.squares += error * error;
  tally.recipe_squares += recipe_error * recipe_error;
  tally.expected_squares += exact.variance[c];
  tally.norm += truth * truth;
}

// Returns the error over its limit.
double check_statistic(const char* what, double ours, double truth, double error, double doubt, double unit,
                       const RowId& row, Tally& tally) {
  const auto report = [&] {
    if (tally.special.empty()) tally.special = fmt::format("{} is {} instead of {} ({})", what, ours, truth, name(row));
  };
  if (!std::isfinite(truth) || std::fabs(truth) > 3.4e38) {
    // +inf - +inf is NaN in a sum of exponentials. Either spelling of "beyond range" is accepted, but not -inf.
    const bool right = truth == -INFINITY ? ours == -INFINITY : !std::isfinite(ours) && ours != -INFINITY;
    if (!right) report();
    return 0;
  }
  const double limit = unit * (8 * std::hypot(error, doubt) + 0x1p-20) + 0x1p-20 * std::fabs(truth);
  const double ratio = std::fabs(ours - truth) / limit;
  if (!(ratio <= 1)) report();
  return std::isnan(ratio) ? INFINITY : ratio;
}

void check_row(const Problem& problem, const RowId& row, const Problem::KeysValues& kv, Tally& tally) {
  const AttentionSpec& spec = problem.spec();
  const ExactRow exact = problem.exact(row, kv);
  const RecipeRow recipe = problem.recipe(row, kv);
  for (int c = 0; c < spec.d_v; ++c) check_element(problem, row, c, exact, recipe.o[c], tally);
  if (spec.lse != Lse::none) {
    const double unit = spec.lse == Lse::log2 ? std::numbers::log2e : 1;
    tally.lse = std::max(tally.lse, check_statistic("lse", problem.output_lse(row), exact.lse * unit, exact.logit_error,
                                                    exact.lse_doubt, unit, row, tally));
  }
  if (spec.max_logit && !exact.nan_logit) {
    tally.max_logit =
        std::max(tally.max_logit, check_statistic("max_logit", problem.output_max_logit(row), exact.max_logit,
                                                  exact.logit_error, exact.max_doubt, 1, row, tally));
  }
}

std::vector<RowId> choose_rows(const Problem& problem, const CompareOptions& options) {
  std::vector<RowId> rows = problem.rows();
  double longest = 1;
  for (std::int64_t b = 0; b < problem.batch(); ++b) longest = std::max<double>(longest, problem.k_len(b));
  const double per_row = longest * (2 * problem.spec().d_qk + 4 * problem.spec().d_v + 64);
  const auto affordable = static_cast<std::size_t>(std::max(16.0, options.work / per_row));
  if (rows.size() <= affordable) return rows;
  // The sample is stratified: one row out of every stretch of equal length, and both ends, where tiles are ragged.
  std::mt19937_64 random(options.seed);
  std::vector<RowId> sample = {rows.front(), rows.back()};
  for (std::size_t i = 0; i < affordable; ++i) {
    const std::size_t begin = rows.size() * i / affordable, end = rows.size() * (i + 1) / affordable;
    sample.push_back(rows[begin + random() % (end - begin)]);
  }
  std::sort(sample.begin(), sample.end(),
            [](const RowId& a, const RowId& b) { return std::tie(a.b, a.h, a.q) < std::tie(b.b, b.h, b.q); });
  return sample;
}

Tally merge(const std::vector<Tally>& tallies) {
  Tally all;
  for (const Tally& tally : tallies) {
    if (tally.worst > all.worst) {
      all.worst = tally.worst, all.worst_row = tally.worst_row, all.worst_column = tally.worst_column;
    }
    all.recipe_worst = std::max(all.recipe_worst, tally.recipe_worst);
    all.deviation = std::max(all.deviation, tally.deviation);
    all.squares += tally.squares;
    all.recipe_squares += tally.recipe_squares;
    all.expected_squares += tally.expected_squares;
    all.norm += tally.norm;
    all.lse = std::max(all.lse, tally.lse);
    all.max_logit = std::max(all.max_logit, tally.max_logit);
    if (all.special.empty()) all.special = tally.special;
  }
  return all;
}

// Calls visit(row, its keys and values, thread) for all rows, from `count` threads.
template <class Visit>
void visit_rows(const Problem& problem, const std::vector<RowId>& rows, std::size_t count, const Visit& visit) {
  const auto work = [&](std::size_t thread) {
    Problem::KeysValues kv;
    std::int64_t b = -1, hk = -1;
    for (std::size_t i = rows.size() * thread / count; i < rows.size() * (thread + 1) / count; ++i) {
      if (rows[i].b != b || problem.kv_head(rows[i].h) != hk) {
        b = rows[i].b, hk = problem.kv_head(rows[i].h);
        kv = problem.keys_values(b, hk);
      }
      visit(rows[i], kv, thread);
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t thread = 1; thread < count; ++thread)
    threads.push_back(library_thread([&, thread] { work(thread); }));
  work(0);
}

Comparison compare_narrowed(const Problem& problem, const CompareOptions& options) {
  const Narrowed narrowed(problem.spec(), problem.arguments());
  Comparison result;
  auto rounded = Problem::create(narrowed.spec(), narrowed.arguments(), problem.semantics());
  if (!rounded) {
    result.problem = rounded.error().message;
    return result;
  }
  if (problem.spec().rope != Rope::none || problem.spec().rotate) rounded->set_doubts(narrowed.doubts());
  rounded->round_weights_to(flashjit::name(problem.weights()));
  result = compare(*rounded, options);
  add_unrounded_errors(problem, options, result);
  return result;
}

}  // namespace

void add_unrounded_errors(const Problem& problem, const CompareOptions& options, Comparison& result) {
  struct Sums {
    double squares = 0, norm = 0, count = 0;
  };
  std::vector<Sums> sums(static_cast<std::size_t>(std::max(1, options.threads)));
  visit_rows(problem, choose_rows(problem, options), sums.size(),
             [&](const RowId& row, const Problem::KeysValues& kv, std::size_t thread) {
               const ExactRow exact = problem.result_alone(row, kv);
               for (std::size_t c = 0; c < exact.o.size(); ++c) {
                 const double error = problem.output(row, static_cast<int>(c)) - exact.o[c];
                 if (!std::isfinite(error)) continue;
                 sums[thread].squares += error * error;
                 sums[thread].norm += exact.o[c] * exact.o[c];
                 ++sums[thread].count;
               }
             });
  Sums all;
  for (const Sums& tally : sums) all = {all.squares + tally.squares, all.norm + tally.norm, all.count + tally.count};
  result.unrounded_rel_err = std::sqrt(all.squares / (all.norm > 0 ? all.norm : 1));
  result.unrounded_rms = std::sqrt(all.squares / std::max(1.0, all.count));
}

Comparison compare(const Problem& problem, const CompareOptions& options) {
  if (problem.spec().operation == Operation::Backward) return compare_gradients(problem, options);
  if (quantizes(problem.spec()))
    return has_latent_rows(problem.spec()) ? compare_latents(problem) : compare_quantized(problem, options);
  if (indexes(problem.spec())) return compare_index(problem, options);
  if (problem.spec().compute) return compare_narrowed(problem, options);
  const std::vector<RowId> rows = choose_rows(problem, options);
  std::vector<Tally> tallies(std::max(1, options.threads));
  visit_rows(problem, rows, tallies.size(), [&](const RowId& row, const Problem::KeysValues& kv, std::size_t thread) {
    check_row(problem, row, kv, tallies[thread]);
  });

  const Tally all = merge(tallies);
  Comparison result;
  for (std::int64_t b = 0; b < problem.batch(); ++b) result.rows += problem.q_len(b) * problem.spec().heads_q;
  result.rows_checked = static_cast<std::int64_t>(rows.size());
  result.max_abs_err = all.worst;
  result.recipe_max_abs_err = all.recipe_worst;
  result.max_abs_limit = std::max(2 * all.recipe_worst, 4 * all.deviation);
  const double norm = all.norm > 0 ? std::sqrt(all.norm) : 1;
  result.rel_err = std::sqrt(all.squares) / norm;
  result.recipe_rel_err = std::sqrt(all.recipe_squares) / norm;
  const double few = 1 + 1 / std::sqrt(std::max<double>(1, static_cast<double>(rows.size())));
  result.rel_limit = 2 * std::max(result.recipe_rel_err, few * std::sqrt(all.expected_squares) / norm);
  result.lse_err = all.lse;
  result.max_logit_err = all.max_logit;
  if (std::string wrong = problem.wrong_append(); !wrong.empty()) {
    result.problem = std::move(wrong);
  } else if (!all.special.empty()) {
    result.problem = all.special;
  } else if (result.max_abs_err > result.max_abs_limit) {
    result.problem = fmt::format("o differs by {:.4g}, the limit is {:.4g} ({}, column {}: {:.6g})", result.max_abs_err,
                                 result.max_abs_limit, name(all.worst_row), all.worst_column,
                                 problem.output(all.worst_row, all.worst_column));
  } else if (result.rel_err > result.rel_limit) {
    result.problem = fmt::format("o has relative error {:.4g}, the limit is {:.4g}", result.rel_err, result.rel_limit);
  }
  result.ok = result.problem.empty();
  return result;
}

}  // namespace flashjit::reference
