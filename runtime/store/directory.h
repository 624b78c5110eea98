// This is a private directory of store entries: <root>/v1/<2 hex digits>/<62 hex digits>. Everything goes through one
// directory handle that was checked when it was opened (trusted_path.h). A directory that somebody else can write is
// refused, because an entry is code.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/result.h"
#include "runtime/compile/compile_bounds.h"
#include "runtime/store/file_handle.h"
#include "runtime/store/entry.h"
#include "runtime/store/trusted_list.h"
#include "runtime/store/trusted_path.h"

namespace flashjit {

// This message tells why there is no directory to keep kernels in, and what helps. read_environment looks for that.
inline constexpr const char* kNoDirectory =
    "HOME is not set, is '/' or no absolute path, or has a ':' in it; set FLASHJIT_CACHE_DIR";

inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// The destructor unlocks explicitly. Closing is not enough: a child that was forked meanwhile has the handle too, and
// would keep the lock.
class StoreLock {
 public:
  StoreLock() = default;
  StoreLock(FileHandle file, off_t byte) : file_(std::move(file)), byte_(byte) {}
  ~StoreLock();
  StoreLock(StoreLock&&) = default;

 private:
  FileHandle file_;
  off_t byte_ = 0;
};

class StoreDirectory {
 public:
  // Create makes the directory (0700) with its parents. A Layer is shared: it may also be root's, and is only read.
  enum class Access { Create, Existing, Layer };
  // The error's message is fit for a note to the user. NotFound means that the directory does not exist and was not to
  // be created.
  static Result<StoreDirectory> open(const std::string& path, Access access = Access::Create);

  enum class Lookup { Hit, Miss, Bad, Unlisted };
  struct Loaded {
    Lookup lookup = Lookup::Miss;
    StoreEntry entry;
    std::int64_t used_ns = 0;  // see Item
  };
  // Bad means that something under this name is not a sound entry of this owner. Unlisted means that the entry's file
  // is not on the list.
  Loaded load(const std::string& digest, const TrustedList* trusted = nullptr) const;

  // Tells evictions that the entry was used, if its last use was long enough ago to be worth a write. If that fails, as
  // on a read-only file system, the entry can be used all the same.
  void refresh(const std::string& digest, std::int64_t used_ns) const;

  // Publishes all or nothing: the entry is written beside its name, synchronised and renamed. Returns the entry's size.
  // Error Io tells what failed.
  Result<std::uint64_t> publish(const std::string& digest, const StoreEntry& entry) const;

  // Locks a key among processes and threads. The kernel releases the lock when its holder dies. There is no lock after
  // `wait`, when `bounds` are over, or where a file cannot be locked; the error tells which. The caller goes on without
  // one.
  Result<StoreLock> lock(const std::string& digest, std::chrono::milliseconds wait,
                         const CompileBounds& bounds = {}) const;

  // One process evicts at a time: two would take each other's locks for keys in use, and remove too much. Returns
  // nothing if another still evicts after `wait`, and an empty lock where the file system has no locks.
  std::optional<StoreLock> lock_evictions(std::chrono::milliseconds wait) const;

  struct Item {
    std::string digest;
    std::uint64_t bytes = 0;
    // Nanoseconds since 1970. This is the file's time of modification, because programs that read a store from outside,
    // such as a backup, leave that as it is.
    std::int64_t used_ns = 0;
  };
  std::vector<Item> list() const;
  bool remove(const std::string& digest) const;

  // Removes an entry as it was listed. An entry is kept if a living process has locked its key, or if it was used or
  // written since.
  enum class Eviction { Removed, Gone, Kept };
  Eviction evict(const Item& item) const;
  // Removes the files that killed writers left behind, and with `all` also those that a living one may be writing.
  int remove_temporaries(bool all) const;

  const std::string& path() const { return path_; }

 private:
  StoreDirectory() = default;
  FileHandle open_shelf(const std::string& digest, bool create) const;
  FileHandle open_lock_file() const;

  std::string path_;
  Trust trust_ = Trust::Own;
  FileHandle root_;  // <root>/v1
};

}  // namespace flashjit
