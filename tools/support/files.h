// Two options may name one file, which is refused before anything is written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct NamedFile {
  std::string option, path;  // The path is empty if the option was not given.
};

// A file that is written twice would keep the last of two results, and one that is also read would be replaced. Devices
// and pipes take and give one after the other. The error names both options.
Result<void> check_files_differ(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

// If there is an error, it begins with the option that gave the file.
template <class T>
Result<T> of_option(std::string_view option, Result<T> read) {
  if (read) return read;
  Error error = read.error();
  error.message.insert(0, std::string(option) + ": ");
  return error;
}

}  // namespace flashjit
