// The kernel store looks in memory, then in a private directory, then in shared ones that are only read. It never makes
// anything fail: a doubtful file is a miss, and an entry that cannot be written stays in memory, with a counter and a
// note.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/compile/compile_bounds.h"
#include "runtime/engine/counters.h"
#include "runtime/engine/fork_safe_mutex.h"
#include "runtime/store/key.h"
#include "runtime/store/single_flight.h"
#include "runtime/store/directory.h"
#include "runtime/store/entry.h"
#include "runtime/store/eviction.h"

namespace flashjit {

// FLASHJIT_CACHE_DIR names directories separated by ':'. The first is written; the others are layers, which are looked
// in in order.
struct StorePath {
  std::string own;
  std::vector<std::string> layers;
};
Result<StorePath> parse_store_path(const std::string& text);  // It is an error if a name is empty or contains ':'.

struct StoreOptions {
  // See StorePath. If it is empty because none can be named (no HOME), kernels stay in memory, with a note.
  std::string directory;
  bool disk = true;  // If it is false, the caller wants kernels in memory only.
  // After this time a process compiles privately, because a stopped process must not stop all others.
  std::chrono::milliseconds lock_wait{120'000};
  // Above this limit on disk, the entries that were used longest ago go until 90 % are left.
  std::uint64_t max_bytes = kDefaultStoreBytes;
  std::shared_ptr<const TrustedList> trusted;  // If there is a list, entries of shared directories must be on it.
};

class KernelStore {
 public:
  explicit KernelStore(const StoreOptions& options);

  using IsEnough = std::function<bool(const StoreEntry&)>;  // If it is empty, every sound entry is enough.
  struct Fetched {
    std::shared_ptr<const StoreEntry> entry;
    const char* source = "";  // "compiled", "waited", "disk" or "memory"
    std::string layer;        // the directory it was found in; empty if it was in memory or was made
    // This tells why the entry had to be made: what was looked at, and what was wrong there.
    std::string miss;
  };
  // Finds the entry, or makes it: once per key in this process, and once per key among the processes that share the
  // directory. `make` fills facts and payload. The only errors are those of `make`, and Timeout and Cancelled of
  // `bounds`, which `make` has to heed itself. An entry that is not enough for `is_enough` is made anew, and replaced.
  Result<Fetched> fetch(const StoreKey& key, const std::function<Result<StoreEntry>()>& make,
                        const CompileBounds& bounds = {}, const IsEnough& is_enough = {});
  // Finds the entry in a directory or in memory, and waits for nothing. If there is none, only `miss` is set.
  Fetched find(const StoreKey& key);

  Counters counters() const;  // without what an engine counts
  // Returns the reasons why the disk is not used, each once.
  std::vector<std::string> notes() const;

 private:
  using Make = std::function<Result<StoreEntry>()>;
  Result<StoreEntry> find_or_make(const StoreKey& key, const Make& make, const CompileBounds& bounds,
                                  const IsEnough& is_enough, Fetched& how);
  std::optional<StoreDirectory::Loaded> look_in(const StoreDirectory& directory, const StoreKey& key,
                                                const IsEnough& is_enough, Fetched& how,
                                                const TrustedList* trusted = nullptr);
  std::optional<StoreEntry> look_on_disk(const StoreKey& key, const IsEnough& is_enough, Fetched& how);
  Result<StoreEntry> make_and_publish(const StoreKey& key, const Make& make);
  void note(const std::string& text);

  const StoreOptions options_;
  std::optional<StoreDirectory> directory_;
  std::vector<StoreDirectory> layers_;
  StoreCap cap_;
  SingleFlight<const StoreEntry> memory_;
  std::atomic<std::int64_t> memory_hits_ = 0, disk_hits_ = 0, layer_hits_ = 0, misses_ = 0, compiles_ = 0,
                            compile_failures_ = 0, waits_ = 0, private_compiles_ = 0, bad_entries_ = 0,
                            not_persisted_ = 0, evictions_ = 0, bytes_read_ = 0, bytes_written_ = 0;
  TimeCounter lookup_us_, compile_us_;
  mutable ForkSafeMutex notes_mutex_;
  std::vector<std::string> notes_;
};

// The command line calls these functions. Each opens one directory by itself, and creates none.
struct StoreStat {
  std::string directory;
  std::int64_t entries = 0;
  std::uint64_t bytes = 0;
  std::int64_t oldest_use = 0, newest_use = 0;  // seconds since 1970; 0 if there are no entries
};
struct StoreListing {
  std::string digest;
  std::uint64_t bytes = 0;
  std::int64_t used = 0;  // seconds since 1970
  bool sound = false;
  std::string key_text;
  StoreFacts facts;
};
Result<StoreStat> stat_store(const std::string& directory,
                             StoreDirectory::Access access = StoreDirectory::Access::Existing);
Result<std::vector<StoreListing>> list_store(const std::string& directory,  // It reads and checks every entry.
                                             StoreDirectory::Access access = StoreDirectory::Access::Existing);
Result<int> remove_bad_entries(const std::string& directory);  // Returns how many it removed.
Result<int> clear_store(const std::string& directory);         // Returns how many it removed.
Result<EvictionOutcome> prune_store(const std::string& directory, const EvictionGoal& goal);

}  // namespace flashjit
