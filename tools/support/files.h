// Files the command writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

// Creates the folders above it. A full disk is an error, and leaves no half file.
Result<void> write_file(const std::filesystem::path& path, std::string_view contents);
// The same, and only the owner may write it, whatever the umask: else an engine would not trust it.
Result<void> write_bundle(const std::filesystem::path& path, std::span<const std::uint8_t> contents);

}  // namespace flashjit
