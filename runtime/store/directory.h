// A private directory of store entries: <root>/v1/<2 hex digits>/<62 hex digits>. Everything goes through one directory
// handle that was checked when it was opened (trusted_path.h): what somebody else can write is refused, because an
// entry is code.
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

// Why there is no directory to keep kernels in, and what helps: what read_environment looks for.
inline constexpr const char* kNoDirectory =
    "HOME is not set, is '/' or no absolute path, or has a ':' in it; set FLASHJIT_CACHE_DIR";

inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// Given back by hand, not by closing alone: a child that was forked meanwhile has the handle too, and would keep the
// lock.
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
  // The error's message is fit for a note to the user. NotFound: there is none yet, and it was not to be created.
  static Result<StoreDirectory> open(const std::string& path, Access access = Access::Create);

  enum class Lookup { Hit, Miss, Bad, Unlisted };
  struct Loaded {
    Lookup lookup = Lookup::Miss;
    StoreEntry entry;
    std::int64_t used_ns = 0;  // as in Item
  };
  // Bad: there is something under this name that is not a sound entry of this owner. Unlisted: its file is not on the
  // list.
  Loaded load(const std::string& digest, const TrustedList* trusted = nullptr) const;

  // Tells evictions that the entry was used, if its last use was long enough ago to be worth a write. That this fails,
  // as on a read-only file system, is no reason to do without the entry.
  void refresh(const std::string& digest, std::int64_t used_ns) const;

  // All or nothing: written beside its name, synchronised, renamed. Returns the entry's size; error Io says what
  // failed.
  Result<std::uint64_t> publish(const std::string& digest, const StoreEntry& entry) const;

  // Exclusive among processes and threads, per key; the kernel releases it when its holder dies. There is none after
  // `wait`, when `bounds` are over, or where a file cannot be locked; the error says which. The caller goes on without.
  Result<StoreLock> lock(const std::string& digest, std::chrono::milliseconds wait,
                         const CompileBounds& bounds = {}) const;

  // One process evicts at a time: two would take each other's locks for keys in use, and remove too much. Nothing while
  // another evicts after `wait`; an empty lock where the file system has no locks.
  std::optional<StoreLock> lock_evictions(std::chrono::milliseconds wait) const;

  struct Item {
    std::string digest;
    std::uint64_t bytes = 0;
    // Nanoseconds since 1970. It is the file's time of modification: what reads a store from outside, such as a backup,
    // leaves that as it is.
    std::int64_t used_ns = 0;
  };
  std::vector<Item> list() const;
  bool remove(const std::string& digest) const;

  // Removes an entry as it was listed. Kept: one whose key a living process has locked, and one that was used or
  // written since.
  enum class Eviction { Removed, Gone, Kept };
  Eviction evict(const Item& item) const;
  // Removes what killed writers left behind; with `all`, also what a living one may be writing.
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
