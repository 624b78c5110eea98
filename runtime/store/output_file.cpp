#include "runtime/store/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/store/temporary_file.h"

namespace flashjit {
namespace {

constexpr int kMostLinks = 40;  // The kernel has the same limit.
// The prefix is short, because the name of the file itself may be as long as names can be.
constexpr std::string_view kPrefix = ".flashjit-chunk-";

Error failed(std::string_view path, int error) {
  return {ErrorKind::Io, fmt::format("{}: cannot be written: {}", path.empty() ? "''" : path, strerror(error)), {}};
}

// A write to `path` goes to this destination.
struct Destination {
  std::string path;       // the path behind all links
  bool is_there = false;  // If it is, `old` describes it.
  // The path leads through /proc, for example /proc/self/fd/1, to a file that is open, not to its name.
  bool is_opened = false;
  struct stat old = {};
};

// Somebody may have planted a link so that a file of ours is overwritten. Where fs.protected_symlinks is set, the system
// refuses to follow such links, but it cannot refuse to let us read them, as is done here.
Result<void> check_link(const std::string& path, const std::string& link, const struct stat& info) {
  constexpr mode_t kEverybodys = S_ISVTX | S_IWOTH;
  const std::filesystem::path above = std::filesystem::path(link).parent_path();
  struct stat folder;
  if (::stat(above.empty() ? "." : above.c_str(), &folder) != 0) return failed(path, errno);
  if ((folder.st_mode & kEverybodys) != kEverybodys || info.st_uid == geteuid() || info.st_uid == folder.st_uid)
    return {};
  return Error{
      ErrorKind::Io,
      fmt::format("{}: cannot be written: {} is a link of user {} in a folder that everybody can write to; name "
                  "the file that is meant, or remove the link",
                  path, link, info.st_uid),
      {}};
}

Result<Destination> find_destination(const std::string& path) {
  Destination destination{path};
  for (int links = 0;; ++links) {
    const FileHandle at(open(destination.path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info;
    if (!at && errno == ENOENT) return destination;
    if (!at || fstat(at.get(), &info) != 0) return failed(path, errno);
    if (!S_ISLNK(info.st_mode)) {
      destination.is_there = true;
      destination.old = info;
      return destination;
    }
    struct statfs system;
    if (fstatfs(at.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC) {
      destination.is_opened = true;
      return destination;
    }
    FLASHJIT_TRY(check_link(path, destination.path, info));
    char target[PATH_MAX];
    const ssize_t length = readlinkat(at.get(), "", target, sizeof target);
    if (length <= 0 || links >= kMostLinks) return failed(path, length <= 0 ? errno : ELOOP);
    destination.path =
        std::filesystem::path(destination.path).parent_path() / std::string(target, static_cast<std::size_t>(length));
  }
}

bool write_chunks(int file, std::initializer_list<std::string_view> chunks) {
  for (const std::string_view chunk : chunks) {
    if (!write_all(file, chunk.data(), chunk.size())) return false;
  }
  return true;
}

// Writes into the file that is there, as the shell's `>` does.
Result<void> write_through(const std::string& path, const Destination& destination,
                           std::initializer_list<std::string_view> chunks, const OutputMode& mode) {
  FileHandle file;
  do {
    file = FileHandle(open(destination.path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY));
  } while (!file && errno == EINTR);
  if (!file || !write_chunks(file.get(), chunks)) return failed(path, errno);
  const mode_t kept = destination.old.st_mode & 07777 & ~mode.forbidden;
  if (!S_ISREG(destination.old.st_mode) || fchmod(file.get(), kept) == 0 || kept == (destination.old.st_mode & 07777))
    return {};
  return Error{
      ErrorKind::Io, fmt::format("{}: its mode cannot be changed: {}; chmod {:o} it", path, strerror(errno), kept), {}};
}

// Takes over owner and mode before the file has any contents that not everybody may read.
bool take_over(int file, const Destination& destination, const OutputMode& mode) {
  struct stat now;
  if (fstat(file, &now) != 0) return false;
  const bool same = now.st_uid == destination.old.st_uid && now.st_gid == destination.old.st_gid;
  if (!same && fchown(file, destination.old.st_uid, destination.old.st_gid) != 0) return false;
  return fchmod(file, destination.old.st_mode & 07777 & ~mode.forbidden) == 0;
}

// Systems such as /proc give this error if a file is to be made in one of their folders.
constexpr int kTakesNoFiles = ENOENT;

// Such a file may be written, but not replaced: it is somebody else's, in a read-only folder, or a mount.
bool is_in_the_way(int error) {
  return error == EPERM || error == EACCES || error == EROFS || error == EBUSY || error == kTakesNoFiles;
}

Result<void> replace(const std::string& path, const Destination& destination,
                     std::initializer_list<std::string_view> chunks, const OutputMode& mode) {
  const std::filesystem::path whole = destination.path;
  const std::string above = whole.has_parent_path() ? whole.parent_path().string() : ".";
  const FileHandle folder(open(above.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return failed(path, errno);
  TemporaryFile file(folder.get(), kPrefix, destination.is_there ? 0600 : mode.fresh & ~mode.forbidden);
  if (file && (!destination.is_there || take_over(file.get(), destination, mode))) {
    if (!write_chunks(file.get(), chunks) || (mode.lasting && fsync(file.get()) != 0)) return failed(path, errno);
    if (file.take_place_of(whole.filename().c_str())) return {};
  }
  if (!destination.is_there) return failed(path, !file && errno == kTakesNoFiles ? EPERM : errno);
  if (!is_in_the_way(errno)) return failed(path, errno);
  return write_through(path, destination, chunks, mode);
}

FileHandle open_beneath(int folder, const std::string& name) {
  mkdirat(folder, name.c_str(), 0777);
  return FileHandle(openat(folder, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace

Result<void> make_folders_above(const std::string& path) {
  const std::filesystem::path above = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!above.empty()) std::filesystem::create_directories(above, error);
  if (!error) return {};
  return Error{ErrorKind::Io, fmt::format("{}: cannot be created: {}", above.string(), error.message()), {}};
}

Result<void> write_output(const std::string& path, std::initializer_list<std::string_view> chunks,
                          const OutputMode& mode) {
  FLASHJIT_TRY(make_folders_above(path));
  FLASHJIT_ASSIGN(destination, find_destination(path));
  if (destination.is_opened || (destination.is_there && !S_ISREG(destination.old.st_mode)))
    return write_through(path, destination, chunks, mode);
  return replace(path, destination, chunks, mode);
}

Result<void> check_output(const std::string& path) {
  FLASHJIT_TRY(make_folders_above(path));
  FLASHJIT_ASSIGN(destination, find_destination(path));
  if (destination.is_there && S_ISDIR(destination.old.st_mode)) return failed(path, EISDIR);
  const auto may = [](const char* name, int mode) { return faccessat(AT_FDCWD, name, mode, AT_EACCESS) == 0; };
  if (destination.is_opened || (destination.is_there && may(destination.path.c_str(), W_OK))) return {};
  const std::filesystem::path above = std::filesystem::path(destination.path).parent_path();
  if (may(above.empty() ? "." : above.c_str(), W_OK | X_OK)) return {};
  return failed(path, errno);
}

Result<void> write_beneath(int folder, std::string_view name, std::string_view text) {
  const std::size_t slash = name.find('/');
  if (slash != name.npos) {
    const FileHandle below = open_beneath(folder, std::string(name.substr(0, slash)));
    if (!below) return failed(name, errno);
    return write_beneath(below.get(), name.substr(slash + 1), text);
  }
  TemporaryFile file(folder, kPrefix, 0666);
  if (file && write_chunks(file.get(), {text}) && file.take_place_of(std::string(name).c_str())) return {};
  return failed(name, errno);
}

}  // namespace flashjit
