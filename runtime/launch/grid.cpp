#include "runtime/launch/grid.h"

#include <algorithm>

namespace flashjit {
namespace {

// What K and V of the heads in work may take of L2: the rest is for Q, O and what is on its way in and out.
constexpr std::int64_t kCachedBytes = 32 << 20;

// Of a row of a head: of a key K and V; of backward of a query Q, dO and what dQ is summed in.
std::int64_t cached_bytes(const Plan& plan) {
  const Dtype read = widens(plan.config) ? plan.spec.dtype : plan.spec.kv_dtype;
  const std::int64_t elements = std::int64_t{cached_dims(plan.spec)} * size_of(read);
  if (!is_backward(plan.spec)) return elements;
  return elements + (plan.config.dq != DqSums::launch ? std::int64_t{plan.spec.d_qk} * size_of(Dtype::F32) : 0);
}

// With sums in order tiles of keys of one head wait for each other, most of all where a tile is no longer than a step. More
// heads are better then, as many as L2 holds: where a mask lets few queries see a tile of keys, however long the sequence
// is, those are all that counts, of the first tile, one in the middle and the last. (Windows of 1024 at 16k, d=64: 374
// TFLOP/s with 32 heads for 316 with 4. But d=128, with two steps for a tile: 380 with 16 heads for 390 with 2; H200,
// 2026-11-25.)
std::int64_t most_rows(const Plan& plan) {
  constexpr std::int64_t kLong = 1 << 24;
  const Expr& mask = plan.spec.mask;
  const bool waits = plan.config.dq == DqSums::ordered && plan.config.tile_q >= plan.config.tile_kv;
  if (!waits || !mask || uses(mask, Op::Load) || uses(mask, Op::Scalar)) return kLong;
  Environment at;
  const auto set = [&](Variable variable, std::int64_t value) { at.variables[static_cast<int>(variable)] = value; };
  set(Variable::QLen, kLong);
  set(Variable::KLen, kLong);
  std::int64_t rows = 1;
  for (const std::int64_t k : {std::int64_t{0}, kLong / 2, kLong - plan.config.tile_kv}) {
    set(Variable::KLo, k);
    set(Variable::KHi, k + plan.config.tile_kv - 1);
    rows = std::max(rows, evaluate(plan.query_tiles.end, at).integer - evaluate(plan.query_tiles.begin, at).integer);
  }
  return rows;
}

}  // namespace

int blocks_of(const GridRule& rule, int items, int sm_count) {
  if (rule.blocks_per_sm > 0) {
    const int blocks = std::min(items, sm_count * rule.blocks_per_sm);
    return blocks - blocks % rule.cluster;
  }
  return rule.persistent ? std::min(items, sm_count) : items;
}

HeadGroups::HeadGroups(const Plan& plan)
    : heads_kv_(plan.spec.heads_kv),
      heads_per_kv_(plan.launches.empty() ? 1 : std::max(plan.launches.front().grid.heads / heads_kv_, 1)),
      of_queries_(is_backward(plan.spec)),
      most_rows_(most_rows(plan)),
      row_bytes_(cached_bytes(plan)) {}

int HeadGroups::heads(const CallSizes& sizes) const {
  const std::int64_t rows = std::min(of_queries_ ? sizes.q_len : sizes.k_len, most_rows_);
  const std::int64_t fit = kCachedBytes / std::max<std::int64_t>(rows * row_bytes_, 1);
  const std::int64_t all = std::max<std::int64_t>(heads_kv_ * sizes.batch, 1);
  return static_cast<int>(std::clamp<std::int64_t>(fit, 1, all)) * heads_per_kv_;
}

}  // namespace flashjit
