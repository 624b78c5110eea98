// Libraries that are opened at run time: NVRTC, the driver, the host backend. They are never closed: they own threads
// and exit handlers, and unloading them while another thread is inside is not safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

class DynamicLibrary {
 public:
  // Error NotFound; the message is the loader's.
  static Result<DynamicLibrary> open(const std::string& name);

  void* symbol(const char* name) const;  // null: absent
  // Calls that the library itself makes of `name`, a function of another library, go to `function`. False when it makes
  // none, or when its table of calls is write-protected: then nothing has changed.
  bool redirect(std::string_view name, void* function) const;
  const std::string& path() const { return path_; }  // of the file that was really opened

 private:
  void* handle_ = nullptr;
  std::string path_;
};

// The folder of the library or program that this code is part of; empty if the loader does not know.
std::string own_directory();

// Returns a text that differs between builds of one version of a library: its GNU build id in hex, or else its size.
std::string file_identity(const std::string& path);

}  // namespace flashjit
