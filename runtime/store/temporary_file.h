// A file that is written beside its place, and then takes it: whoever looks there finds the old one or the whole new
// one. Everything that FlashJIT replaces is written so.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "runtime/store/file_handle.h"

namespace flashjit {

// In a folder that others can write too, nobody can have laid anything under its name before: that is random, and a
// name that is taken, be it by a link, is not opened. Goes away with its owner, unless it took its place.
class TemporaryFile {
 public:
  // False with errno if it cannot be made. `folder` is an open one and must outlive this; `mode` is that of open().
  TemporaryFile(int folder, std::string_view prefix, mode_t mode);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  explicit operator bool() const { return static_cast<bool>(file_); }
  int get() const { return file_.get(); }
  // Replaces whatever has that name in the folder; of a link the link, not where it leads. False with errno.
  bool take_place_of(const char* name);

 private:
  const int folder_;
  std::string name_;  // empty once it has the other name
  FileHandle file_;
};

// False with errno. A file size limit or a reader that went away is an error here, and no signal that ends the process.
bool write_all(int file, const void* data, std::size_t bytes);

}  // namespace flashjit
