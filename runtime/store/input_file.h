// Users name these files to be read.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "compiler/result.h"
#include "runtime/store/file_handle.h"

namespace flashjit {

// Returns "folder", "pipe" or "device", for the error that asks for a file.
std::string_view kind_of_file(mode_t mode);

// `expected` ends the error message if the path is no file, for example "a manifest is a file of lines". A pipe may
// have nobody who writes into it, so it is opened only if the program was given it open: /dev/stdin, or the file that a
// shell makes of <(...).
Result<FileHandle> open_input(const std::string& path, std::string_view expected);

// Reads everything from an open file of that path.
Result<std::string> read_input(int file, const std::string& path, std::size_t most_bytes, std::string_view expected);

}  // namespace flashjit
