#include "runtime/store/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <thread>

#include "runtime/store/temporary_file.h"

namespace flashjit {
namespace {

constexpr const char* kVersionFolder = "v1";
constexpr const char* kLockFile = "lock";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::int64_t kTemporaryLifeSeconds = 3600;
constexpr std::int64_t kRefreshAfterNs = 3600 * kNsPerSecond;

Error io(std::string message) { return {ErrorKind::Io, std::move(message), {}}; }

std::string why(int error) { return strerrordesc_np(error) ? strerrordesc_np(error) : fmt::format("error {}", error); }

bool read_all(int fd, std::vector<std::uint8_t>& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = read(fd, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

bool is_hex(std::string_view text, std::size_t length) {
  return text.size() == length && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::vector<std::string> names_in(int directory) {
  std::vector<std::string> names;
  const int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // fdopendir takes the handle over.
  if (copy < 0) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(copy), closedir);
  if (!stream) {
    close(copy);
    return names;
  }
  while (const dirent* entry = readdir(stream.get())) {
    if (std::string_view(entry->d_name) != "." && std::string_view(entry->d_name) != "..")
      names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

int remove_temporaries_in(int shelf, bool all) {
  int removed = 0;
  for (const std::string& name : names_in(shelf)) {
    struct stat info;
    if (!name.starts_with(kTemporary) || fstatat(shelf, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!all && time(nullptr) - info.st_mtime < kTemporaryLifeSeconds) continue;
    removed += unlinkat(shelf, name.c_str(), 0) == 0;
  }
  return removed;
}

// If this fails, errno tells why. It is the error of mkdir if that was the cause.
FileHandle open_folder(int parent, const char* name, bool create) {
  const int made = create && mkdirat(parent, name, 0700) != 0 ? errno : 0;
  if (create && made == 0) fchmodat(parent, name, 0700, 0);  // The mode must not depend on the umask.
  FileHandle folder(openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder && made != 0 && made != EEXIST) errno = made;
  return folder;
}

std::int64_t last_use(const struct stat& info) {
  return std::int64_t{info.st_mtim.tv_sec} * kNsPerSecond + info.st_mtim.tv_nsec;
}

std::int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * kNsPerSecond + now.tv_nsec;
}

// One file has the locks of all keys: each key locks one byte of it, at an offset made of its digest. Locks of the open
// file description end with the last handle to it, whatever happens to the process.
off_t byte_of(const std::string& digest) { return static_cast<off_t>(std::stoull(digest.substr(0, 15), nullptr, 16)); }
constexpr off_t kEvictionByte = off_t{1} << 60;  // It lies behind the bytes of all keys.

struct flock one_byte(off_t byte) {
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  return range;
}

// Returns false and sets errno if another holds the lock (see is_busy) or the file system has no locks.
bool try_lock(int file, off_t byte) {
  struct flock range = one_byte(byte);
  return fcntl(file, F_OFD_SETLK, &range) == 0;
}

bool is_busy(int error) { return error == EAGAIN || error == EACCES || error == EINTR; }

// Returns false with such an errno if the lock is still held after `wait` or when `bounds` are over.
bool lock_within(int file, off_t byte, std::chrono::milliseconds wait, const CompileBounds& bounds = {}) {
  const auto until = std::chrono::steady_clock::now() + wait;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    if (try_lock(file, byte)) return true;
    if (!is_busy(errno) || std::chrono::steady_clock::now() >= until || bounds.is_over()) return false;
    std::this_thread::sleep_for(bounds.slice(pause));
  }
}

}  // namespace

StoreLock::~StoreLock() {
  if (!file_) return;
  struct flock range = one_byte(byte_);
  range.l_type = F_UNLCK;
  fcntl(file_.get(), F_OFD_SETLK, &range);
}

Result<StoreDirectory> StoreDirectory::open(const std::string& path, Access access) {
  const bool create = access == Access::Create;
  if (path.empty()) return io(fmt::format("no directory for kernels: {}", kNoDirectory));
  StoreDirectory directory;
  directory.path_ = path;
  directory.trust_ = access == Access::Layer ? Trust::OwnOrRoot : Trust::Own;
  FLASHJIT_ASSIGN(top, open_trusted(path, directory.trust_, create));
  directory.root_ = open_folder(top.get(), kVersionFolder, create);
  if (!directory.root_) {
    return Error{errno == ENOENT ? ErrorKind::NotFound : ErrorKind::Io,
                 fmt::format("{}: cannot be {}: {}{}", path, create ? "written" : "opened", why(errno),
                             create ? "; set FLASHJIT_CACHE_DIR to a directory that this user can write" : ""),
                 {}};
  }
  FLASHJIT_TRY(check_owner(directory.root_.get(), fmt::format("{}/{}", path, kVersionFolder), directory.trust_));
  return directory;
}

FileHandle StoreDirectory::open_shelf(const std::string& digest, bool create) const {
  if (!is_hex(digest, 64)) return FileHandle();
  return open_folder(root_.get(), digest.substr(0, 2).c_str(), create);
}

FileHandle StoreDirectory::open_lock_file() const {
  FileHandle file(openat(root_.get(), kLockFile, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (file || errno != ENOENT) return file;
  file = FileHandle(openat(root_.get(), kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file) fchmod(file.get(), 0600);  // The mode must not depend on the umask.
  return file;
}

StoreDirectory::Loaded StoreDirectory::load(const std::string& digest, const TrustedList* trusted) const {
  const FileHandle shelf = open_shelf(digest, false);
  if (!shelf) return {};
  // O_NONBLOCK is there because a FIFO under this name must not make us wait for a writer.
  const FileHandle file(openat(shelf.get(), digest.c_str() + 2, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return {errno == ENOENT ? Lookup::Miss : Lookup::Bad, {}};
  struct stat info;
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || !is_trusted(info.st_uid, trust_) ||
      (info.st_mode & (S_IWGRP | S_IWOTH)) != 0 || static_cast<std::uint64_t>(info.st_size) > kMaxEntryBytes) {
    return {Lookup::Bad, {}};
  }
  // Entries are read, not mapped: a mapped file that is replaced on a network file system ends the process with SIGBUS.
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(info.st_size));
  if (!read_all(file.get(), bytes)) return {Lookup::Bad, {}};
  auto entry = decode(bytes);
  if (!entry) return {Lookup::Bad, {}};
  if (trusted && !trusted->has(sha256(bytes))) return {Lookup::Unlisted, {}};
  return {Lookup::Hit, std::move(*entry), last_use(info)};
}

void StoreDirectory::refresh(const std::string& digest, std::int64_t used_ns) const {
  // A time in the future, from a clock that was wrong, would make the entry the last to go.
  if (std::abs(now_ns() - used_ns) < kRefreshAfterNs) return;
  const FileHandle shelf = open_shelf(digest, false);
  const timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
  if (shelf) utimensat(shelf.get(), digest.c_str() + 2, times, AT_SYMLINK_NOFOLLOW);
}

Result<std::uint64_t> StoreDirectory::publish(const std::string& digest, const StoreEntry& entry) const {
  const FileHandle shelf = open_shelf(digest, true);
  if (!shelf) return io(fmt::format("{}: cannot be written: {}", path_, why(errno)));
  remove_temporaries_in(shelf.get(), false);
  const std::vector<std::uint8_t> bytes = encode(entry);
  TemporaryFile file(shelf.get(), kTemporary, 0600);
  if (!file) return io(fmt::format("{}: cannot be written: {}", path_, why(errno)));
  fchmod(file.get(), 0600);  // The mode must not depend on the umask.
  const char* step = nullptr;
  if (!write_all(file.get(), bytes.data(), bytes.size())) {
    step = "writing";
  } else if (fsync(file.get()) != 0) {
    step = "synchronising";
  } else if (!file.take_place_of(digest.c_str() + 2)) {
    step = "renaming";
  }
  if (!step) return std::uint64_t{bytes.size()};
  return io(fmt::format("{}: {} a kernel failed: {}", path_, step, why(errno)));
}

Result<StoreLock> StoreDirectory::lock(const std::string& digest, std::chrono::milliseconds wait,
                                       const CompileBounds& bounds) const {
  FileHandle file = open_lock_file();
  if (file && lock_within(file.get(), byte_of(digest), wait, bounds)) {
    return StoreLock(std::move(file), byte_of(digest));
  }
  if (file && is_busy(errno)) return io("another process took too long to compile it");
  return io(fmt::format("it cannot be locked: {}", why(errno)));
}

std::optional<StoreLock> StoreDirectory::lock_evictions(std::chrono::milliseconds wait) const {
  FileHandle file = open_lock_file();
  if (!file || lock_within(file.get(), kEvictionByte, wait)) return StoreLock(std::move(file), kEvictionByte);
  if (is_busy(errno)) return std::nullopt;
  return StoreLock();
}

std::vector<StoreDirectory::Item> StoreDirectory::list() const {
  std::vector<Item> items;
  for (const std::string& prefix : names_in(root_.get())) {
    if (!is_hex(prefix, 2)) continue;
    const FileHandle shelf = open_folder(root_.get(), prefix.c_str(), false);
    if (!shelf) continue;
    for (const std::string& name : names_in(shelf.get())) {
      struct stat info;
      if (!is_hex(name, 62) || fstatat(shelf.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
      items.push_back({prefix + name, static_cast<std::uint64_t>(info.st_size), last_use(info)});
    }
  }
  return items;
}

bool StoreDirectory::remove(const std::string& digest) const {
  const FileHandle shelf = open_shelf(digest, false);
  return shelf && unlinkat(shelf.get(), digest.c_str() + 2, 0) == 0;
}

StoreDirectory::Eviction StoreDirectory::evict(const Item& item) const {
  // The lock is held until the file is gone, so that nobody can publish the key anew between the second look and the
  // unlink.
  FileHandle file = open_lock_file();
  const bool locked = file && try_lock(file.get(), byte_of(item.digest));
  if (file && !locked && is_busy(errno)) return Eviction::Kept;
  const StoreLock lock = locked ? StoreLock(std::move(file), byte_of(item.digest)) : StoreLock();
  const FileHandle shelf = open_shelf(item.digest, false);
  const char* name = item.digest.c_str() + 2;
  struct stat info;
  if (!shelf || fstatat(shelf.get(), name, &info, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? Eviction::Gone : Eviction::Kept;
  if (last_use(info) != item.used_ns) return Eviction::Kept;
  if (unlinkat(shelf.get(), name, 0) == 0) return Eviction::Removed;
  return errno == ENOENT ? Eviction::Gone : Eviction::Kept;
}

int StoreDirectory::remove_temporaries(bool all) const {
  int removed = 0;
  for (const std::string& prefix : names_in(root_.get())) {
    if (!is_hex(prefix, 2)) continue;
    const FileHandle shelf = open_folder(root_.get(), prefix.c_str(), false);
    if (shelf) removed += remove_temporaries_in(shelf.get(), all);
  }
  return removed;
}

}  // namespace flashjit
