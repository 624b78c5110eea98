#include "runtime/store/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace flashjit {

std::string_view kind_of_file(mode_t mode) { return S_ISDIR(mode) ? "folder" : S_ISFIFO(mode) ? "pipe" : "device"; }

Result<FileHandle> open_input(const std::string& path, std::string_view expected) {
  const bool is_given = path == "/dev/stdin" || path.starts_with("/dev/fd/");
  FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (is_given ? 0 : O_NONBLOCK)));
  if (!file)
    return Error{errno == ENOENT ? ErrorKind::NotFound : ErrorKind::Io,
                 fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)),
                 {}};
  struct stat info = {};
  if (!is_given && fstat(file.get(), &info) == 0 && !S_ISREG(info.st_mode))
    return invalid(fmt::format("{}: this is no file but a {}; {}", path, kind_of_file(info.st_mode), expected));
  return file;
}

Result<std::string> read_input(int file, const std::string& path, std::size_t most_bytes, std::string_view expected) {
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t got = read(file, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorKind::Io, fmt::format("{}: cannot be read: {}", path, std::strerror(errno)), {}};
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > most_bytes)
      return invalid(fmt::format("{}: longer than {} bytes, the most that is read; {}", path, most_bytes, expected));
  }
}

}  // namespace flashjit
