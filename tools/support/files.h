// Files that options name. Two may name one file; that is refused before anything is written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct NamedFile {
  std::string option, path;  // the path is empty where the option was not given
};

// A file that is written would keep the last of two results, and replace what the call reads. Devices and pipes take and
// give one after the other. The error names both options.
Result<void> check_files_differ(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

// The error, if there is one, begins with the option that gave the file.
template <class T>
Result<T> of_option(std::string_view option, Result<T> read) {
  if (read) return read;
  Error error = read.error();
  error.message.insert(0, std::string(option) + ": ");
  return error;
}

}  // namespace flashjit
