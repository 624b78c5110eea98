// Files the command writes.
#pragma once

#include <filesystem>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

// Creates the folders above it. A full disk is an error, and leaves no half file.
Result<void> write_file(const std::filesystem::path& path, std::string_view contents);

}  // namespace flashjit
