// Keeps a store directory below its cap: what was used longest ago goes first. Any number of processes may do this at
// once, and any of them may die in the middle: an entry is there or not, and what is missing is compiled again.
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
  std::uint64_t remaining_bytes = max_bytes;  // when there is more than max_bytes, entries go until this much is left
  std::int64_t unused_since_ns = 0;           // entries whose last use was before this go in any case
  std::string spared;                         // a digest that is never removed
};

struct EvictionOutcome {
  std::int64_t removed = 0, left = 0;
  std::uint64_t removed_bytes = 0, left_bytes = 0;
};

// Returns nothing if another process is evicting and does not end within `wait`.
std::optional<EvictionOutcome> evict(const StoreDirectory& directory, const EvictionGoal& goal,
                                     std::chrono::milliseconds wait);

// Evicts after publishing. Other processes write to the directory too, so only a look tells its size; there is one at
// the first publish, and then as often as keeps all of them together within a tenth of the cap.
class StoreCap {
 public:
  explicit StoreCap(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}
  // Returns how many entries were removed.
  std::int64_t published(const StoreDirectory& directory, const std::string& digest, std::uint64_t bytes);

 private:
  const std::uint64_t max_bytes_;
  ForkSafeMutex mutex_;
  std::uint64_t unseen_bytes_ = 0;  // published since the last look
  int unseen_ = 0;                  // publishes until the next one
};

}  // namespace flashjit
