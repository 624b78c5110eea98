#include "tools/support/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

namespace flashjit {

Result<void> write_file(const std::filesystem::path& path, std::string_view contents) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    return Error{
        ErrorKind::Io, fmt::format("{}: cannot be created: {}", path.parent_path().string(), error.message()), {}};
  const std::string part = fmt::format("{}.{}.part", path.string(), ::getpid());
  std::FILE* file = std::fopen(part.c_str(), "wbe");
  bool wrote = file != nullptr && std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  int code = errno;
  if (file && std::fclose(file) != 0) {
    code = errno;
    wrote = false;
  }
  if (wrote && std::rename(part.c_str(), path.c_str()) == 0) return {};
  if (wrote) code = errno;
  std::remove(part.c_str());
  return Error{ErrorKind::Io, fmt::format("{}: cannot be written: {}", path.string(), std::strerror(code)), {}};
}

Result<void> write_bundle(const std::filesystem::path& path, std::span<const std::uint8_t> contents) {
  FLASHJIT_TRY(write_file(path, {reinterpret_cast<const char*>(contents.data()), contents.size()}));
  std::error_code error;
  std::filesystem::permissions(path, std::filesystem::perms::group_write | std::filesystem::perms::others_write,
                               std::filesystem::perm_options::remove, error);
  if (!error) return {};
  return Error{ErrorKind::Io,
               fmt::format("{}: its mode cannot be changed: {}; chmod go-w it", path.string(), error.message()),
               {}};
}

}  // namespace flashjit
