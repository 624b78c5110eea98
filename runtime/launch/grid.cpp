#include "runtime/launch/grid.h"

#include <algorithm>

namespace flashjit {
namespace {

// What K and V of the heads in work may take of L2: the rest is for Q, O and what is on its way in and out.
constexpr std::int64_t kCachedBytes = 32 << 20;

}  // namespace

Grid::Grid(const Plan& plan)
    : queries(plan.schedule.tile_q.value_or(1)),
      heads(plan.spec.heads_q),
      heads_per_kv(plan.spec.heads_q / plan.spec.heads_kv),
      heads_kv(plan.spec.heads_kv),
      key_bytes(std::int64_t{plan.spec.d_qk + plan.spec.d_v} * size_of(plan.spec.kv_dtype)) {
  const KernelConfig& config = plan.config;
  if (config.loop != Loop::hopper) return;
  queries = queries_per_tile(config) * config.cluster;
  cluster = config.cluster;
  persistent = config.persistent;
  if (config.pack_heads) {
    heads = heads_kv;
    heads_per_kv = 1;
  }
}

std::int64_t Grid::most_blocks(std::int64_t q_len, std::int64_t batch) const {
  std::int64_t blocks = 0;
  return __builtin_mul_overflow(tiles(q_len) * heads * cluster, batch, &blocks) ? -1 : blocks;
}

int Grid::heads_per_group(std::int64_t k_len, std::int64_t batch) const {
  const std::int64_t fit = kCachedBytes / std::max<std::int64_t>(k_len * key_bytes, 1);
  const std::int64_t all = std::max<std::int64_t>(heads_kv * batch, 1);
  return static_cast<int>(std::clamp<std::int64_t>(fit, 1, all)) * heads_per_kv;
}

int Grid::blocks(const KernelParams& params, int sm_count) const {
  const int items = params.tiles_q * heads * params.batch;  // ArgumentChecker::fill refuses more than an int holds
  return cluster * (persistent ? std::min(items, sm_count / cluster) : items);
}

}  // namespace flashjit
