// Gradients of parameters and sinks have an error rule of their own (compare.h).
#include <algorithm>
#include <cmath>
#include <thread>

#include "autotune/reference/backward/backward.h"
#include "autotune/reference/compare.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "runtime/launch/library_thread.h"

namespace flashjit::reference {
namespace {

constexpr double kMostWork = 4e9;           // limit in multiply-adds; a sum is computed as a whole, or not at all
constexpr std::size_t kFewElements = 4096;  // limit for tensors in which each element is a row of its own

// These are sums of all shares of one tensor, row-major.
struct Sums {
  std::string name;
  std::vector<std::int64_t> shape, strides;
  const void* data = nullptr;
  std::vector<double> exact, variance, squares, terms;
  std::vector<std::vector<float>> recipe;
  std::vector<bool> tainted;

  explicit Sums(const std::string& of, const Tensor& gradient)
      : name(of), shape(gradient.shape), strides(gradient.strides), data(gradient.data) {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    exact.resize(count), variance.resize(count), squares.resize(count), terms.resize(count);
    recipe.resize(count), tainted.resize(count);
    if (!strides.empty()) return;
    strides.assign(shape.size(), 1);
    for (std::size_t i = shape.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * shape[i + 1];
  }

  void add(const Backward::Share& share) {
    const auto i = static_cast<std::size_t>(share.element.number);
    exact[i] += share.exact, variance[i] += share.variance, squares[i] += share.squares, terms[i] += share.terms;
    recipe[i].push_back(share.recipe);
    if (share.tainted) tainted[i] = true;
  }

  std::vector<std::int64_t> index(std::size_t number) const {
    std::vector<std::int64_t> index(shape.size());
    auto left = static_cast<std::int64_t>(number);
    for (std::size_t i = shape.size(); i-- > 0; left /= shape[i]) index[i] = left % shape[i];
    return index;
  }
  double ours(std::size_t number) const {
    const std::vector<std::int64_t> at = index(number);
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < at.size(); ++i) offset += at[i] * strides[i];
    return static_cast<const float*>(data)[offset];
  }

  // This is the variance of an fp32 sum of so many terms, in any order.
  double variance_of(std::size_t i) const {
    return variance[i] + terms[i] * 0x1p-48 / 6 * (squares[i] + exact[i] * exact[i]);
  }
  GradientTally judged() const {
    GradientTally tally;
    const std::size_t width = exact.size() <= kFewElements ? 1 : static_cast<std::size_t>(shape.back());
    for (std::size_t first = 0; first < exact.size(); first += width) {
      Gradient row;
      std::vector<double> values;
      for (std::size_t i = first; i < first + width; ++i) {
        row.exact.push_back(exact[i]), row.variance.push_back(variance_of(i));
        row.recipe.push_back(sum_in_pairs(recipe[i].data(), recipe[i].size()));
        row.tainted.push_back(tainted[i]);
        values.push_back(ours(i));
      }
      tally.check_row(values, row, fmt::format("from [{}] on", fmt::join(index(first), ", ")));
    }
    return tally;
  }
};

double work_of(const Problem& problem, std::size_t parameters) {
  const AttentionSpec& spec = problem.spec();
  double pairs = 0;
  for (std::int64_t b = 0; b < problem.batch(); ++b)
    pairs += static_cast<double>(problem.q_len(b)) * static_cast<double>(problem.k_len(b)) * spec.heads_q;
  // Each score is taken at some twenty arguments.
  return parameters == 0 ? 0 : pairs * (3 * (spec.d_qk + spec.d_v) + 1500 * static_cast<double>(parameters));
}

}  // namespace

void compare_parameter_gradients(const Problem& problem, const CompareOptions& options, Comparison& result) {
  const AttentionSpec& spec = problem.spec();
  const auto& params = problem.arguments().params;
  const std::vector<int> wanted = params_with_gradients(spec);
  const bool of_params = !wanted.empty() && work_of(problem, wanted.size()) <= kMostWork;
  if (!wanted.empty() && !of_params) result.unchecked = "gradients of parameters";
  std::vector<Sums> sums;
  for (const int number : wanted) {
    const std::string name = gradient_name(spec.params[static_cast<std::size_t>(number)].name);
    if (of_params) sums.emplace_back(name, params.at(name));
  }
  if (has_sink_gradient(spec)) sums.emplace_back("dsink", params.at("dsink"));
  if (sums.empty()) return;
  const Backward backward(problem);
  for (std::int64_t b = 0; b < problem.batch(); ++b) {
    for (std::int64_t hk = 0; hk < spec.heads_kv; ++hk) {
      const Backward::Group group = backward.group(b, hk);
      const auto queries = static_cast<std::int64_t>(group.queries.size());
      std::vector<std::vector<Backward::Share>> shares(group.queries.size());
      const auto work = [&](std::int64_t thread) {
        for (std::int64_t i = thread; i < queries; i += std::max(1, options.threads))
          shares[static_cast<std::size_t>(i)] =
              backward.of_parameters(group, i / problem.q_len(b), i % problem.q_len(b));
      };
      if (of_params) {
        std::vector<std::jthread> threads;
        for (int thread = 1; thread < options.threads; ++thread)
          threads.push_back(library_thread([&, thread] { work(thread); }));
        work(0);
      }
      for (std::int64_t i = 0; i < queries; ++i) {
        for (const Backward::Share& share : shares[static_cast<std::size_t>(i)])
          sums[static_cast<std::size_t>(std::ranges::find(wanted, static_cast<int>(share.element.param)) -
                                        wanted.begin())]
              .add(share);
        if (has_sink_gradient(spec))
          sums.back().add(backward.of_sink(group, i / problem.q_len(b), i % problem.q_len(b)));
      }
    }
  }
  for (const Sums& tensor : sums) judge(tensor.name, tensor.judged(), result);
}

}  // namespace flashjit::reference
