#include "runtime/launch/grid.h"

#include <algorithm>

namespace flashjit {
namespace {

// K and V of the heads in work may take this much of L2. The rest is for Q, O and other data on its way in and out.
constexpr std::int64_t kCachedBytes = 32 << 20;

}  // namespace

int blocks_of(const GridRule& rule, int items, int sm_count) {
  if (rule.blocks_per_sm > 0) {
    const int blocks = std::min(items, sm_count * rule.blocks_per_sm);
    return blocks - blocks % rule.cluster;
  }
  if (!rule.persistent) return items;
  const int blocks = std::min(items, sm_count * rule.of_sm);
  return blocks - blocks % rule.cluster;
}

ResidentClusters limited(const GridRule& rule, const ResidentClusters& resident, int sm_count) {
  ResidentClusters fewer = resident;
  for (std::size_t i = 0; i < fewer.size(); ++i) fewer[i] = std::min(fewer[i], (sm_count * rule.blocks_per_sm) >> i);
  return fewer;
}

HeadGroups::HeadGroups(const Plan& plan)
    : heads_kv_(plan.spec.heads_kv),
      heads_per_kv_(plan.launches.empty() ? 1 : std::max(plan.launches.front().grid.heads / heads_kv_, 1)),
      of_queries_(is_backward(plan.spec)),
      rule_(plan.head_groups) {}

int HeadGroups::heads(const CallSizes& sizes) const {
  const std::int64_t rows = std::min(of_queries_ ? sizes.q_len : sizes.k_len, rule_.most_rows);
  const std::int64_t fit = kCachedBytes / std::max<std::int64_t>(rows * rule_.row_bytes, 1);
  const std::int64_t all = std::max<std::int64_t>(heads_kv_ * sizes.batch, 1);
  return static_cast<int>(std::clamp<std::int64_t>(fit, 1, all)) * heads_per_kv_;
}

}  // namespace flashjit
