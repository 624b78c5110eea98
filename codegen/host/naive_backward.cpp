#include "codegen/host/naive_backward.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "codegen/host/cpu.h"
#include "codegen/host/lists/listed_gradients.h"
#include "codegen/host/problem.h"
#include "codegen/host/workspace.h"

namespace flashjit::host {
namespace {

class NaiveGradientsKernel final : public HostKernel {
 public:
  NaiveGradientsKernel(const AttentionSpec& spec, const HostConfig& config, std::unique_ptr<Code> code,
                       NaiveQueryFunction queries, NaiveKeyFunction keys)
      : spec_(spec), config_(config), code_(std::move(code)), queries_(queries), keys_(keys) {}

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override;

 private:
  // This is a (sequence, KV head) pair, and the addresses of its rows. The queries of all its heads follow each other.
  struct Pair {
    std::int64_t b = 0, hk = 0;
    Sequence sequence;
    std::int64_t first_query = 0, first_key = 0;  // The items before this pair's.
    std::vector<const void*> k, v, q, d_o;
    std::vector<float*> p, ds;
    float* listed = nullptr;  // Shares of queries with lists.
  };
  std::int64_t group() const { return spec_.heads_q / spec_.heads_kv; }
  std::int64_t row_floats(std::int64_t keys) const { return round_up(keys, config_.lanes); }
  std::vector<Pair> all_pairs(const Problem& problem, const KernelParams& params) const;
  void list_rows(const Problem& problem, const KernelParams& params, Pair& pair, float* matrices) const;
  void compute(const Problem& problem, const KernelParams& params, std::span<const Pair> pairs,
               const ParallelFor& parallel) const;
  void compute_query(const Problem& problem, const KernelParams& params, const Pair& pair, std::int64_t item) const;
  void compute_key(const Problem& problem, const KernelParams& params, const Pair& pair, std::int64_t key) const;

  AttentionSpec spec_;
  HostConfig config_;
  std::unique_ptr<Code> code_;
  NaiveQueryFunction queries_;
  NaiveKeyFunction keys_;
  mutable WorkspacePool workspaces_;
};

std::vector<NaiveGradientsKernel::Pair> NaiveGradientsKernel::all_pairs(const Problem& problem,
                                                                        const KernelParams& params) const {
  std::vector<Pair> pairs;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    for (std::int64_t hk = 0; hk < spec_.heads_kv; ++hk) {
      Pair pair;
      pair.b = b;
      pair.hk = hk;
      pair.sequence = problem.sequence(b, hk);
      if (!pairs.empty()) {
        const Pair& last = pairs.back();
        pair.first_query = last.first_query + last.sequence.q_len * group();
        pair.first_key = last.first_key + last.sequence.k_len;
      }
      pairs.push_back(std::move(pair));
    }
  }
  return pairs;
}

void NaiveGradientsKernel::list_rows(const Problem& problem, const KernelParams& params, Pair& pair,
                                     float* matrices) const {
  const Sequence& s = pair.sequence;
  pair.k.resize(static_cast<std::size_t>(s.k_len));
  pair.v.resize(static_cast<std::size_t>(s.k_len));
  problem.k_rows(pair.b, pair.hk, 0, s.k_len, pair.k.data());
  problem.v_rows(pair.b, pair.hk, 0, s.k_len, pair.v.data());
  float* row = matrices;
  for (std::int64_t head = pair.hk * group(); head < (pair.hk + 1) * group(); ++head) {
    for (std::int64_t query = 0; query < s.q_len; ++query) {
      pair.q.push_back(problem.q(pair.b, head, s.q_first + query));
      pair.d_o.push_back(problem.like_q(params.d_o, params.d_o_stride, pair.b, head, s.q_first + query));
      pair.p.push_back(row);
      pair.ds.push_back(row + row_floats(s.k_len));
      row += 2 * row_floats(s.k_len);
    }
  }
}

Result<void> NaiveGradientsKernel::run(const KernelParams& params, const ParallelFor& parallel) const {
  const Problem problem(spec_, params);
  std::vector<Pair> pairs = all_pairs(problem, params);
  ListedGradients listed(spec_, params);
  const std::int64_t sums = selects(spec_) ? listed.bytes() / 4 : 0,
                     of_listed_key = selects(spec_) ? listed.row_floats() : 0;
  auto floats = static_cast<double>(sums);  // An int64 need not be able to hold it.
  for (const Pair& pair : pairs)
    floats += 2.0 * static_cast<double>(pair.sequence.q_len * group()) *
                  static_cast<double>(row_floats(pair.sequence.k_len)) +
              static_cast<double>(pair.sequence.k_len * of_listed_key);
  constexpr double kLargest = 1e12;
  const auto bytes = static_cast<std::int64_t>(std::min(floats, kLargest) * sizeof(float));
  std::unique_ptr<Workspace> workspace;
  if (floats < kLargest) workspace = workspaces_.take(bytes + 1);
  if (!workspace) return out_of_memory(bytes, "the naive version holds all scores: use shorter sequences");
  auto* next = reinterpret_cast<float*>(workspace->data());
  if (selects(spec_)) listed.begin(reinterpret_cast<char*>(std::exchange(next, next + sums)), parallel);
  std::vector<ListedShare> shares;
  for (Pair& pair : pairs) {
    list_rows(problem, params, pair, next);
    next += 2 * pair.sequence.q_len * group() * row_floats(pair.sequence.k_len);
    pair.listed = std::exchange(next, next + pair.sequence.k_len * of_listed_key);
    shares.push_back({pair.b, pair.hk, pair.listed});
  }
  compute(problem, params, pairs, parallel);
  if (selects(spec_)) {
    listed.add(problem, shares, parallel);
    listed.store(parallel);
  }
  workspaces_.give_back(std::move(workspace));
  return {};
}

void NaiveGradientsKernel::compute(const Problem& problem, const KernelParams& params, std::span<const Pair> pairs,
                                   const ParallelFor& parallel) const {
  if (pairs.empty()) return;
  const Pair& last = pairs.back();
  parallel.each(last.first_query + last.sequence.q_len * group(), [&](std::int64_t item, int) {
    const FlushSubnormals flush;
    const Pair& pair = owner(pairs, item, &Pair::first_query);
    compute_query(problem, params, pair, item - pair.first_query);
  });
  parallel.each(last.first_key + last.sequence.k_len, [&](std::int64_t item, int) {
    const FlushSubnormals flush;
    const Pair& pair = owner(pairs, item, &Pair::first_key);
    compute_key(problem, params, pair, item - pair.first_key);
  });
}

void NaiveGradientsKernel::compute_query(const Problem& problem, const KernelParams& params, const Pair& pair,
                                         std::int64_t item) const {
  const Sequence& s = pair.sequence;
  const auto at = static_cast<std::size_t>(item);
  const std::int64_t head = pair.hk * group() + item / s.q_len, query = item % s.q_len, token = s.q_first + query;
  const NaiveQueryCall call{
      .params = &params,
      .q = pair.q[at],
      .d_o = pair.d_o[at],
      .o = problem.like_q(params.o, params.o_stride, pair.b, head, token),
      .k_rows = pair.k.data(),
      .v_rows = pair.v.data(),
      .lse = problem.row_value(params.lse, pair.b, head, token),
      .d_lse = spec_.dlse ? problem.row_value(params.d_lse, pair.b, head, token) : nullptr,
      .probabilities = pair.p[at],
      .gradients = pair.ds[at],
      .dq = problem.query_result(params.dq, params.dq_stride, spec_.out_dq, pair.b, head, token),
      .b = pair.b,
      .h = head,
      .hk = pair.hk,
      .q_len = s.q_len,
      .k_len = s.k_len,
      .q_row = query,
      .key = dropout_key<true>(params),
  };
  queries_(&call);
}

void NaiveGradientsKernel::compute_key(const Problem& problem, const KernelParams& params, const Pair& pair,
                                       std::int64_t key) const {
  NaiveKeyCall call{
      .q_rows = pair.q.data(),
      .do_rows = pair.d_o.data(),
      .probabilities = pair.p.data(),
      .gradients = pair.ds.data(),
      .dk = problem.key_result(params.dk, params.dk_stride, spec_.out_dk, pair.b, pair.hk, key),
      .dv =
          spec_.v_in_k ? nullptr : problem.key_result(params.dv, params.dv_stride, spec_.out_dv, pair.b, pair.hk, key),
      .queries = static_cast<std::int64_t>(pair.q.size()),
      .key = key,
  };
  if (selects(spec_)) {
    call.dk = pair.listed + key * (spec_.d_qk + spec_.d_v);
    call.dv = pair.listed + key * (spec_.d_qk + spec_.d_v) + spec_.d_qk;
  }
  keys_(&call);
}

}  // namespace

Result<std::unique_ptr<HostKernel>> naive_gradients_kernel(const Plan& plan, const HostConfig& config,
                                                           std::unique_ptr<Code> code) {
  FLASHJIT_ASSIGN(queries, code->find<NaiveQueryFunction>(kNaiveQueryGradientsName));
  FLASHJIT_ASSIGN(keys, code->find<NaiveKeyFunction>(kNaiveKeyGradientsName));
  return std::unique_ptr<HostKernel>(
      std::make_unique<NaiveGradientsKernel>(plan.spec, config, std::move(code), queries, keys));
}

}  // namespace flashjit::host
