#include "runtime/store/trusted_path.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace flashjit {
namespace {

constexpr int kMostLinksOfPath = 40;  // The kernel has the same limit.

Error io_error(std::string message) { return {ErrorKind::Io, std::move(message), {}}; }

std::string reason_of(int error) {
  return strerrordesc_np(error) ? strerrordesc_np(error) : fmt::format("error {}", error);
}

// Checks a directory on the way: whoever can change its names decides where the way goes.
Result<void> check_passed(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return io_error(fmt::format("{}: {}", path, reason_of(errno)));
  if (!is_trusted(info.st_uid, Trust::OwnOrRoot)) {
    return io_error(fmt::format(
        "{}: belongs to user {}, who could put another directory of kernels there, and kernels are code; set "
        "FLASHJIT_CACHE_DIR to a place that only user {} and root can change",
        path, info.st_uid, geteuid()));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (info.st_mode & S_ISVTX) == 0) {
    return io_error(fmt::format(
        "{}: mode {:o} lets other users put another directory of kernels there, and kernels are code; chmod go-w it, or "
        "set FLASHJIT_CACHE_DIR to another place",
        path, info.st_mode & 07777));
  }
  return {};
}

// Goes name by name, with a handle to each directory, so that nothing can be exchanged between a look and the next
// step.
class Walk {
 public:
  Walk(const std::string& path, bool create) : path_(path), rest_(path), create_(create) { start(); }

  Result<FileHandle> run() {
    while (at_) {
      const std::string name = next_name();
      if (name.empty()) return std::move(at_);
      if (name == ".") continue;
      FLASHJIT_TRY(check_passed(at_.get(), done_));
      FLASHJIT_TRY(step(name));
    }
    return failed("opened");
  }

 private:
  void start() {
    done_ = rest_.starts_with('/') ? "/" : ".";
    at_ = FileHandle(open(done_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }

  std::string next_name() {
    rest_.erase(0, rest_.find_first_not_of('/'));
    std::string name = rest_.substr(0, rest_.find('/'));
    rest_.erase(0, name.size());
    return name;
  }

  Error failed(const char* what) const {
    return {errno == ENOENT ? ErrorKind::NotFound : ErrorKind::Io,
            fmt::format("{}: cannot be {}: {}{}", path_, what, reason_of(errno),
                        create_ ? "; set FLASHJIT_CACHE_DIR to a directory that this user can write" : ""),
            {}};
  }

  Result<void> step(const std::string& name) {
    FileHandle next = look(name);
    if (!next && errno == ENOENT && create_) {
      if (mkdirat(at_.get(), name.c_str(), 0700) == 0) {
        fchmodat(at_.get(), name.c_str(), 0700, 0);  // The mode must not depend on the umask.
      } else if (errno != EEXIST) {
        return failed("created");
      }
      next = look(name);
    }
    struct stat info;
    if (!next || fstat(next.get(), &info) != 0) return failed("opened");
    if (S_ISLNK(info.st_mode)) return follow(next.get(), info.st_uid, name);
    if (!S_ISDIR(info.st_mode)) {
      errno = ENOTDIR;
      return failed("opened");
    }
    at_ = std::move(next);
    if (!done_.ends_with('/')) done_ += '/';
    done_ += name;
    return {};
  }

  FileHandle look(const std::string& name) const {
    return FileHandle(openat(at_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  }

  Result<void> follow(int link, uid_t owner, const std::string& name) {
    if (!is_trusted(owner, Trust::OwnOrRoot)) {
      return io_error(fmt::format(
          "{}/{}: a link of user {}, who could let it lead anywhere, and kernels are code; set FLASHJIT_CACHE_DIR to "
          "another place",
          done_, name, owner));
    }
    char target[PATH_MAX];
    const ssize_t length = readlinkat(link, "", target, sizeof target);
    if (++links_ > kMostLinksOfPath) errno = ELOOP;
    if (length <= 0 || links_ > kMostLinksOfPath) return failed("opened");
    rest_ = std::string(target, static_cast<std::size_t>(length)) + rest_;
    if (rest_.starts_with('/')) start();
    return {};
  }

  const std::string& path_;
  std::string rest_;  // names that are still to be gone through
  std::string done_;  // the way so far, for messages
  const bool create_;
  int links_ = 0;
  FileHandle at_;
};

}  // namespace

bool is_trusted(uid_t owner, Trust trust) { return owner == geteuid() || (owner == 0 && trust == Trust::OwnOrRoot); }

Result<void> check_owner(int fd, const std::string& path, Trust trust) {
  struct stat info;
  if (fstat(fd, &info) != 0) return io_error(fmt::format("{}: {}", path, reason_of(errno)));
  if (!is_trusted(info.st_uid, trust)) {
    if (trust == Trust::OwnOrRoot) {
      return io_error(fmt::format(
          "{}: belongs to user {}, neither to user {} who runs this nor to root; kernels are code: have root own it",
          path, info.st_uid, geteuid()));
    }
    const bool may_be_read = is_trusted(info.st_uid, Trust::OwnOrRoot);
    return io_error(fmt::format(
        "{}: belongs to user {}, not to user {} who runs this; kernels are code, so only an own directory is "
        "used; set FLASHJIT_CACHE_DIR to one{}",
        path, info.st_uid, geteuid(),
        may_be_read ? ", or to OWN:SHARED with this one as SHARED, which is only read" : ""));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return io_error(fmt::format("{}: mode {:o} lets other users write to it, and kernels are code; chmod go-w it", path,
                                info.st_mode & 07777));
  }
  return {};
}

Result<FileHandle> open_trusted(const std::string& path, Trust trust, bool create) {
  FLASHJIT_ASSIGN(directory, Walk(path, create).run());
  FLASHJIT_TRY(check_owner(directory.get(), path, trust));
  return std::move(directory);
}

}  // namespace flashjit
