#include "autotune/measure/gradient_data.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <thread>

#include "autotune/reference/reference.h"
#include "compiler/spec/half.h"
#include "runtime/launch/library_thread.h"
#include "runtime/launch/thread_pool.h"

namespace flashjit {
namespace {

// Limit on pairs of a query and a key, which takes the reference seconds.
constexpr double kMostPairs = 4e6;

// A gradient belongs to the O and LSE that are given, whatever they are, and large problems are about time. LSE gets
// the value that logits of deviation 1 have over all keys, so that P has its usual size, too. O stays noise.
void set_usual_lse(NamedTensor& lse, const AttentionSpec& spec, const ProblemShape& shape) {
  const double unit = spec.lse == Lse::log2 ? std::numbers::log2e : 1;
  const double usual = (std::log(static_cast<double>(std::max<std::int64_t>(shape.longest_k(), 1))) + 0.5) * unit;
  const auto elements = static_cast<std::int64_t>(lse.bytes.size()) / size_of(lse.dtype);
  for (std::int64_t i = 0; i < elements; ++i) store_float(lse.dtype, lse.bytes.data(), i, static_cast<float>(usual));
}

// A row lies at these offsets in drawn tensors, which have no gaps.
struct RowOffsets {
  std::int64_t o = 0, lse = 0;  // in elements
};
RowOffsets offsets_of(const AttentionSpec& spec, const NamedTensor& lse, const reference::RowId& row,
                      std::int64_t start) {
  const std::int64_t heads = spec.heads_q, tokens = lse.shape.back(), token = start + row.q;
  const std::int64_t before = is_packed(spec) ? 0 : row.b;  // number of sequences before
  const std::int64_t number = (before * heads + row.h) * tokens + token;
  const std::int64_t o = spec.layout == Layout::Bhsd ? number : (before * tokens + token) * heads + row.h;
  return {o * spec.d_v, number};
}

void set_exactly(NamedTensor* o, NamedTensor* lse, const NamedTensor& like_lse, const AttentionSpec& spec,
                 const ProblemShape& shape, const reference::Problem& problem) {
  const double unit = spec.lse == Lse::log2 ? std::numbers::log2e : 1;
  std::vector<std::int64_t> starts(shape.q.size(), 0);
  if (is_packed(spec)) {
    for (std::size_t b = 1; b < starts.size(); ++b) starts[b] = starts[b - 1] + shape.q[b - 1];
  }
  const std::vector<reference::RowId> rows = problem.rows();
  const auto threads = static_cast<std::size_t>(usable_cores());
  std::vector<std::jthread> workers;
  for (std::size_t t = 0; t < threads; ++t) {
    workers.push_back(library_thread([&, begin = rows.size() * t / threads, end = rows.size() * (t + 1) / threads] {
      reference::Problem::KeysValues kv;
      for (std::size_t i = begin; i < end; ++i) {
        const reference::RowId& row = rows[i];
        const bool same =
            i > begin && rows[i - 1].b == row.b && problem.kv_head(rows[i - 1].h) == problem.kv_head(row.h);
        if (!same) kv = problem.keys_values(row.b, problem.kv_head(row.h));
        const reference::ExactRow exact = problem.result_alone(row, kv);
        const RowOffsets at = offsets_of(spec, like_lse, row, starts[static_cast<std::size_t>(row.b)]);
        for (int c = 0; o && c < spec.d_v; ++c)
          store_float(o->dtype, o->bytes.data(), at.o + c, static_cast<float>(exact.o[static_cast<std::size_t>(c)]));
        if (lse) store_float(lse->dtype, lse->bytes.data(), at.lse, static_cast<float>(exact.lse * unit));
      }
    }));
  }
}

}  // namespace

void set_results_of_forward(ProblemData& data, const AttentionSpec& spec, const ProblemShape& shape,
                            const InputFiles& inputs) {
  NamedTensor *o = data.find("o"), *lse = data.find("lse");
  const NamedTensor& like_lse = *lse;
  if (inputs.files.contains("o")) o = nullptr;
  if (inputs.files.contains("lse")) lse = nullptr;
  if (!o && !lse) return;
  const Arguments arguments = data.host_arguments();
  const auto problem = reference::Problem::create(spec, arguments);
  if (static_cast<double>(data.score_count()) <= kMostPairs && problem)
    set_exactly(o, lse, like_lse, spec, shape, *problem);
  else if (lse) set_usual_lse(*lse, spec, shape);
}

}  // namespace flashjit
