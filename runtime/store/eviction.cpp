#include "runtime/store/eviction.h"

#include <algorithm>
#include <tuple>

namespace flashjit {
namespace {

// A look costs 2.5 us per entry (20,000 entries, local disk). A publish costs half a second of compiling.
constexpr int kPublishesPerLook = 64;
// This many processes may write at once without exceeding the cap by more than a tenth between looks.
constexpr std::uint64_t kWriters = 16;
// A process that should look while another removes entries waits, because fast writers would fill the disk meanwhile.
// The wait is bounded in case the other process is stopped. Then every look costs this much, and the size is not held.
constexpr std::chrono::milliseconds kTurnWait{1000};

// An entry that no reader would accept goes before all others. Its size may be anything, and must drive nothing out.
auto order(const StoreDirectory::Item& item) {
  return std::tuple(item.bytes <= kMaxEntryBytes, item.used_ns, std::string_view(item.digest));
}

}  // namespace

std::optional<EvictionOutcome> evict(const StoreDirectory& directory, const EvictionGoal& goal,
                                     std::chrono::milliseconds wait) {
  const auto turn = directory.lock_evictions(wait);
  if (!turn) return std::nullopt;
  directory.remove_temporaries(false);
  auto items = directory.list();
  std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return order(a) < order(b); });
  EvictionOutcome outcome;
  outcome.left = static_cast<std::int64_t>(items.size());
  for (const auto& item : items) outcome.left_bytes += item.bytes;
  const bool too_large = outcome.left_bytes > goal.max_bytes;
  for (const auto& item : items) {
    const bool must_go =
        (too_large && outcome.left_bytes > goal.remaining_bytes) || item.used_ns < goal.unused_since_ns;
    if (!must_go || item.digest == goal.spared) continue;
    const auto done = directory.evict(item);
    if (done == StoreDirectory::Eviction::Kept) continue;
    --outcome.left;
    outcome.left_bytes -= item.bytes;
    if (done == StoreDirectory::Eviction::Gone) continue;  // Another process was faster.
    ++outcome.removed;
    outcome.removed_bytes += item.bytes;
  }
  return outcome;
}

std::int64_t StoreCap::published(const StoreDirectory& directory, const std::string& digest, std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    unseen_bytes_ += bytes;
    if (--unseen_ >= 0 && unseen_bytes_ <= max_bytes_ / 10 / kWriters) return 0;
    unseen_bytes_ = 0;
    unseen_ = kPublishesPerLook;
  }
  const EvictionGoal goal{
      .max_bytes = max_bytes_, .remaining_bytes = max_bytes_ / 10 * 9, .unused_since_ns = 0, .spared = digest};
  const auto outcome = evict(directory, goal, kTurnWait);
  return outcome ? outcome->removed : 0;
}

}  // namespace flashjit
