// The kernel store: memory, then a private directory, then shared ones that are only read. It never makes anything
// fail: what is doubtful on disk is a miss, and what cannot be written stays in memory, with a counter and a note.
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

// FLASHJIT_CACHE_DIR names directories separated by ':'. The first is written, the layers after it are looked in, in order.
struct StorePath {
  std::string own;
  std::vector<std::string> layers;
};
Result<StorePath> parse_store_path(const std::string& text);  // error: an empty name, a name with ':'

struct StoreOptions {
  std::string directory;  // see StorePath; empty: none can be named (no HOME); memory only, with a note
  bool disk = true;       // false: memory only, as asked
  std::chrono::milliseconds lock_wait{120'000};  // then compile privately: a stopped process must not stop all others
  std::uint64_t max_bytes =
      kDefaultStoreBytes;                      // on disk; above it, what was used longest ago goes until 90 % are left
  std::shared_ptr<const TrustedList> trusted;  // if there is one, entries of shared directories must be on it
};

class KernelStore {
 public:
  explicit KernelStore(const StoreOptions& options);

  using IsEnough = std::function<bool(const StoreEntry&)>;  // empty: whatever is sound
  struct Fetched {
    std::shared_ptr<const StoreEntry> entry;
    const char* source = "";  // "compiled" "waited" "disk" "memory"
    std::string layer;        // the directory it was found in; empty: memory, or it was made
    std::string miss;         // why it had to be made: what was looked at, and what was wrong there
  };
  // Finds the entry, or makes it: once per key in this process, and once per key among the processes that share the
  // directory. `make` fills facts and payload. The only errors are those of `make`, and Timeout and Cancelled of
  // `bounds`, which `make` has to heed itself. An entry that `is_enough` says no to is made anew, and replaced.
  Result<Fetched> fetch(const StoreKey& key, const std::function<Result<StoreEntry>()>& make,
                        const CompileBounds& bounds = {}, const IsEnough& is_enough = {});
  // The entry if it is in a directory or in memory; waits for nothing. Without an entry: only `miss`.
  Fetched find(const StoreKey& key);

  Counters counters() const;               // without what an engine counts
  std::vector<std::string> notes() const;  // each once: why the disk is not used

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
  std::int64_t oldest_use = 0, newest_use = 0;  // seconds since 1970; 0: no entries
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
Result<std::vector<StoreListing>> list_store(const std::string& directory,  // reads and checks every entry
                                             StoreDirectory::Access access = StoreDirectory::Access::Existing);
Result<int> remove_bad_entries(const std::string& directory);  // returns how many
Result<int> clear_store(const std::string& directory);         // returns how many
Result<EvictionOutcome> prune_store(const std::string& directory, const EvictionGoal& goal);

}  // namespace flashjit
