// Two options of a call may name one file; that is refused before anything is written.
#pragma once

#include <string>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct NamedFile {
  std::string option, path;  // the path is empty where the option was not given
};

// A file that is written would keep the last of two results, and replace what the call reads. Devices and pipes take and
// give one after the other. The error names both options.
Result<void> check_files_differ(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

}  // namespace flashjit
