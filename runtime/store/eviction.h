// A store directory is kept below its cap: the entries that were used longest ago go first. Any number of processes may
// do this at once, and any of them may die in the middle: an entry is there or not, and a missing one is compiled
// again.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "runtime/engine/fork_safe_mutex.h"
#include "runtime/store/directory.h"

namespace flashjit {

inline constexpr std::uint64_t kDefaultStoreBytes = std::uint64_t{2} << 30;

struct EvictionGoal {
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();
  // When there is more than max_bytes, entries go until this much is left.
  std::uint64_t remaining_bytes = max_bytes;
  // Entries whose last use was before this time go in any case.
  std::int64_t unused_since_ns = 0;
  std::string spared;  // The entry with this digest is never removed.
};

struct EvictionOutcome {
  std::int64_t removed = 0, left = 0;
  std::uint64_t removed_bytes = 0, left_bytes = 0;
};

// Returns nothing if another process is evicting and does not end within `wait`.
std::optional<EvictionOutcome> evict(const StoreDirectory& directory, const EvictionGoal& goal,
                                     std::chrono::milliseconds wait);

// Evicts after publishing. Other processes write to the directory too, so only a look tells its size. There is one at
// the first publish, and then one as often as keeps all processes together within a tenth of the cap.
class StoreCap {
 public:
  explicit StoreCap(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}
  // Returns how many entries were removed.
  std::int64_t published(const StoreDirectory& directory, const std::string& digest, std::uint64_t bytes);

 private:
  const std::uint64_t max_bytes_;
  ForkSafeMutex mutex_;
  std::uint64_t unseen_bytes_ = 0;  // bytes that were published since the last look
  int unseen_ = 0;                  // publishes until the next look
};

}  // namespace flashjit
