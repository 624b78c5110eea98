// NVRTC, the driver and the host backend are libraries that are opened at run time. They are never closed: they own
// threads and exit handlers, and unloading them while another thread is inside is not safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

class DynamicLibrary {
 public:
  // Error NotFound has the loader's message.
  static Result<DynamicLibrary> open(const std::string& name);

  void* symbol(const char* name) const;  // Returns null if there is no such symbol.
  // Makes all calls of `name`, a function of another library, that this library makes go to `function`. Returns false
  // and changes nothing if the library makes no such calls, or if its table of calls is write-protected.
  bool redirect(std::string_view name, void* function) const;
  const std::string& path() const { return path_; }  // the file that was really opened

 private:
  void* handle_ = nullptr;
  std::string path_;
};

// Returns the folder of the library or program that this code is part of, or an empty text if the loader does not know.
std::string own_directory();

// Returns a text that differs between builds of one version of a library: its GNU build id in hex, or else its size.
std::string file_identity(const std::string& path);

}  // namespace flashjit
