#include "tests/fault/system_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace flashjit::system_calls {
namespace {

std::map<std::string, int> failures;

}  // namespace

void fail(const std::string& call, int error) { failures[call] = error; }

namespace {

bool fails(const char* call) {
  if (failures.empty()) return false;
  const auto found = failures.find(call);
  if (found == failures.end()) return false;
  errno = found->second;
  return true;
}

template <class Function>
Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::size_t part(std::size_t size) { return short_transfers && size > 1 ? size / 2 : size; }

}  // namespace
}  // namespace flashjit::system_calls

using namespace flashjit::system_calls;

extern "C" {

int mkdirat(int at, const char* name, mode_t mode) noexcept {
  static auto* const real = next(&mkdirat, "mkdirat");
  return fails("mkdirat") ? -1 : real(at, name, mode);
}

int openat(int at, const char* name, int flags, ...) {
  static auto* const real = reinterpret_cast<int (*)(int, const char*, int, mode_t)>(dlsym(RTLD_NEXT, "openat"));
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if ((flags & O_EXCL) != 0 && fails("openat")) return -1;
  if (!hidden.empty() && hidden == name) {
    errno = ENOENT;
    return -1;
  }
  return real(at, name, flags, mode);
}

ssize_t write(int fd, const void* data, std::size_t size) {
  static auto* const real = next(&write, "write");
  return fails("write") ? -1 : real(fd, data, part(size));
}

ssize_t read(int fd, void* data, std::size_t size) {
  static auto* const real = next(&read, "read");
  return real(fd, data, part(size));
}

int fsync(int fd) {
  static auto* const real = next(&fsync, "fsync");
  return fails("fsync") ? -1 : real(fd);
}

int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  static auto* const real = next(&renameat, "renameat");
  if (rename_is_done) real(from_at, from, to_at, to);
  if (fails("renameat")) return -1;
  const int result = real(from_at, from, to_at, to);
  if (hidden == to) hidden.clear();
  return result;
}

int fcntl(int fd, int command, ...) {
  static auto* const real = reinterpret_cast<int (*)(int, int, void*)>(dlsym(RTLD_NEXT, "fcntl"));
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return command == F_OFD_SETLK && fails("fcntl") ? -1 : real(fd, command, argument);
}

int fstat(int fd, struct stat* info) noexcept {
  static auto* const real = next(&fstat, "fstat");
  const int result = real(fd, info);
  // Of what is written the client knows the length.
  if (result == 0 && stale_size >= 0 && S_ISREG(info->st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
    info->st_size = stale_size;
  return result;
}
}
