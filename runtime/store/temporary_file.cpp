#include "runtime/store/temporary_file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>

namespace flashjit {
namespace {

// A write beyond the file size limit raises SIGXFSZ, and one to a pipe that nobody reads SIGPIPE. Either would end the
// user's process. The signal goes to the writing thread, so it can be held back and taken away there.
class HoldSignals {
 public:
  HoldSignals() {
    sigemptyset(&taken_);
    for (const int signal : {SIGXFSZ, SIGPIPE}) sigaddset(&taken_, signal);
    pthread_sigmask(SIG_BLOCK, &taken_, &before_);
    for (const int signal : {SIGXFSZ, SIGPIPE}) {
      if (sigismember(&before_, signal)) sigdelset(&taken_, signal);  // The user's program takes this signal itself.
    }
  }
  ~HoldSignals() {
    const int error = errno;  // the error of the write
    const timespec now = {0, 0};
    while (!sigisemptyset(&taken_) && sigtimedwait(&taken_, nullptr, &now) == -1 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  HoldSignals(const HoldSignals&) = delete;
  HoldSignals& operator=(const HoldSignals&) = delete;

 private:
  sigset_t taken_, before_;
};

// Returns whether this name stands for this file. A network file system may do a rename, lose the answer, do it again,
// and report that it failed.
bool is_at(int file, int folder, const char* name) {
  const int error = errno;
  struct stat ours, there;
  const bool same = fstat(file, &ours) == 0 && fstatat(folder, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                    ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
  errno = error;
  return same;
}

}  // namespace

TemporaryFile::TemporaryFile(int folder, std::string_view prefix, mode_t mode) : folder_(folder) {
  std::uint64_t digits[2];
  if (getentropy(digits, sizeof digits) != 0) return;
  std::string name = fmt::format("{}{:016x}{:016x}", prefix, digits[0], digits[1]);
  file_ = FileHandle(openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (file_) name_ = std::move(name);
}

TemporaryFile::~TemporaryFile() {
  const int error = errno;  // the reason why the file is given up
  if (!name_.empty()) unlinkat(folder_, name_.c_str(), 0);
  errno = error;
}

bool TemporaryFile::take_place_of(const char* name) {
  if (renameat(folder_, name_.c_str(), folder_, name) != 0 && !is_at(file_.get(), folder_, name)) return false;
  name_.clear();
  return true;
}

bool write_all(int file, const void* data, std::size_t bytes) {
  const HoldSignals hold;
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(file, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = ENOSPC;
      return false;
    }
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace flashjit
