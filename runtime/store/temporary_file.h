// A temporary file is written beside its place and then takes it, so that readers find the old file or the whole new
// one. Everything that FlashJIT replaces is written so.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "runtime/store/file_handle.h"

namespace flashjit {

// In a folder that others can write, too, nobody can have laid anything under its name before: the name is random, and
// a name that is taken, even by a link, is not opened. The file goes away with its owner, unless it took its place.
class TemporaryFile {
 public:
  // It is false, with errno, if the file cannot be made. `folder` is open and must outlive this object. `mode` is that
  // of open().
  TemporaryFile(int folder, std::string_view prefix, mode_t mode);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  explicit operator bool() const { return static_cast<bool>(file_); }
  int get() const { return file_.get(); }
  // Replaces the file of that name in the folder. A link is replaced itself, not the file it leads to. Returns false
  // with errno.
  bool take_place_of(const char* name);

 private:
  const int folder_;
  std::string name_;  // empty once the file has the other name
  FileHandle file_;
};

// Returns false with errno. A file size limit or a reader that went away is an error here, not a signal that ends the
// process.
bool write_all(int file, const void* data, std::size_t bytes);

}  // namespace flashjit
