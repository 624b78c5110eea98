#include "codegen/host/operations/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "codegen/host/config.h"
#include "codegen/host/cpu.h"
#include "codegen/host/emit/attention.h"
#include "codegen/host/jit.h"
#include "codegen/host/problem.h"
#include "codegen/host/widen.h"
#include "codegen/host/workspace.h"

namespace flashjit::host {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

class IndexKernel final : public HostKernel {
 public:
  IndexKernel(const AttentionSpec& spec, const HostConfig& config, std::unique_ptr<Code> code, NaiveFunction scores)
      : spec_(spec), config_(config), code_(std::move(code)), score_row_(scores) {
    if (has_scaled_keys(spec_)) widener_.emplace(spec_.kv_dtype, config_.dtype);
  }

  // One (sequence, KV head) pair is computed after the other, because all of its queries read the same rows.
  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override {
    const std::int64_t keys = std::max(params.k_len, 0), element = widener_ ? size_of(config_.dtype) : 0;
    const std::int64_t rows_bytes = bytes_of_elements<const void*>(keys), scale_bytes = bytes_of_elements<float>(keys),
                       wide_bytes = round_up(keys * spec_.d_qk * element, 64);
    const std::int64_t of_worker = 2 * scale_bytes + bytes_of_elements<int>(keys) + 64 * config_.lanes;
    const std::int64_t bytes = rows_bytes + scale_bytes + wide_bytes + parallel.workers * of_worker;
    std::unique_ptr<Workspace> workspace = workspaces_.take(bytes);
    if (!workspace) return out_of_memory(bytes, "use shorter sequences");
    char* at = workspace->data();
    const std::span<const void*> rows = make_elements<const void*>(at, keys);
    const std::span<float> scales = make_elements<float>(at += rows_bytes, keys);
    char* const wide = at += scale_bytes;
    char* const scratch = wide + wide_bytes;
    const Problem problem(spec_, params);
    for (std::int64_t pair = 0; pair < std::int64_t{params.batch} * spec_.heads_kv; ++pair) {
      const std::int64_t b = pair / spec_.heads_kv, hk = pair % spec_.heads_kv;
      const Sequence s = problem.sequence(b, hk);
      parallel.each((s.k_len + kPackKeys - 1) / kPackKeys, [&](std::int64_t item, int) {
        const std::int64_t first = item * kPackKeys, count = std::min(kPackKeys, s.k_len - first);
        problem.k_rows(b, hk, first, count, rows.data() + first);
        problem.scales_k(b, hk, first, count, scales.data() + first);
        if (widener_) widener_->widen(rows.data() + first, count, spec_.d_qk, wide + first * spec_.d_qk * element);
      });
      parallel.each(s.q_len, [&](std::int64_t q, int worker) {
        char* const own = scratch + worker * of_worker;
        const Row row{problem, params, s, b, hk, q, rows.data(), scales.data()};
        float* const sums =
            params.scores ? params.scores + at_query(params.scores_stride, row, hk) : reinterpret_cast<float*>(own);
        add_up(row, reinterpret_cast<float*>(own + scale_bytes), sums);
        if (params.scores) std::fill(sums + s.k_len, sums + keys, kHidden);
        else list(row, sums, reinterpret_cast<int*>(own + 2 * scale_bytes + 32 * config_.lanes));
      });
    }
    workspaces_.give_back(std::move(workspace));
    return {};
  }

 private:
  struct Row {
    const Problem& problem;
    const KernelParams& params;
    const Sequence& sequence;
    std::int64_t b, hk, q;
    const void* const* keys;
    const float* scales;
  };
  std::int64_t at_query(const Strides& stride, const Row& row, std::int64_t head) const {
    return (is_packed(spec_) ? 0 : row.b * stride.batch) + head * stride.head +
           (row.sequence.q_first + row.q) * stride.token;
  }

  // Adds the positive products of each head, times its weight, to the sums of keys. Hidden keys have -infinity.
  void add_up(const Row& row, float* products, float* sums) const {
    const FlushSubnormals flush;
    const std::int64_t group = spec_.heads_q / spec_.heads_kv, keys = row.sequence.k_len;
    std::fill_n(sums, keys, 0.0f);
    for (std::int64_t h = row.hk * group; h < (row.hk + 1) * group; ++h) {
      float query[kMaxHeadDim];
      const void* q = row.problem.q(row.b, h, row.sequence.q_first + row.q);
      if (widener_) widener_->widen(&q, 1, spec_.d_qk, reinterpret_cast<char*>(query));
      NaiveCall call{};
      call.params = &row.params;
      call.q = q;
      call.k_rows = row.keys;
      call.scores = products;
      call.b = row.b, call.h = h, call.hk = row.hk;
      call.q_len = row.sequence.q_len, call.k_len = keys, call.q_row = row.q;
      call.scale_k = call.scale_v = 1;
      score_row_(&call);
      const float weight = row.params.weights[at_query(row.params.weights_stride, row, h)];
      for (std::int64_t k = 0; k < keys; ++k)
        sums[k] = products[k] == kHidden ? kHidden : sums[k] + weight * products[k];
    }
    for (std::int64_t k = 0; k < keys; ++k) sums[k] = sums[k] == kHidden ? kHidden : sums[k] * row.scales[k];
  }

  // Writes the numbers of the keys with the largest sums, in the order of keys. Among equal sums the first keys are
  // taken, and NaN is above all.
  void list(const Row& row, const float* sums, int* keys) const {
    int* end = keys;
    for (int k = 0; k < row.sequence.k_len; ++k) {
      if (sums[k] != kHidden) *end++ = k;
    }
    const auto is_before = [&](int a, int b) {
      const bool no_number = std::isnan(sums[a]);
      if (no_number != std::isnan(sums[b])) return no_number;
      return no_number || sums[a] == sums[b] ? a < b : sums[a] > sums[b];
    };
    int* last = end;
    if (end - keys > spec_.selected) {
      last = keys + spec_.selected;
      std::nth_element(keys, last, end, is_before);
      std::sort(keys, last);
    }
    int* const numbers = row.params.key_index + at_query(row.params.key_index_stride, row, row.hk);
    for (int i = 0; i < spec_.selected; ++i) numbers[i] = keys + i < last ? number_of(row, keys[i]) : -1;
    if (row.params.key_count)
      row.params.key_count[at_query(row.params.key_count_stride, row, row.hk)] = static_cast<int>(last - keys);
  }
  // Rows are counted as select=keys(N) counts them.
  int number_of(const Row& row, int key) const {
    const KeyAddress at = row.problem.key_address(row.b, key);
    return static_cast<int>(is_paged(spec_) ? at.block * spec_.page_size + at.token : at.token);
  }

  const AttentionSpec spec_;
  const HostConfig config_;
  const std::unique_ptr<Code> code_;
  const NaiveFunction score_row_;
  std::optional<Widener> widener_;
  mutable WorkspacePool workspaces_;
};

}  // namespace

Plan plan_of_heads(const Plan& plan) {
  Plan heads = plan;
  AttentionSpec& spec = heads.spec;
  spec.operation = Operation::Forward;
  spec.out_dtype = Dtype::F32;
  spec.selected = 0;
  spec.scale = 1;
  spec.score = max(Expr::variable(Variable::S), Expr::real(0));
  return heads;
}

Result<std::unique_ptr<HostKernel>> index_kernel(const Plan& plan, std::span<const std::uint8_t> object) {
  FLASHJIT_ASSIGN(code, Code::link(object));
  FLASHJIT_ASSIGN(scores, code->find<NaiveFunction>(kNaiveScoresName));
  return std::unique_ptr<HostKernel>(
      std::make_unique<IndexKernel>(plan.spec, config_of(plan), std::move(code), scores));
}

}  // namespace flashjit::host
