// The files of templates/, embedded at build time.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace flashjit {

struct EmbeddedFile {
  std::string_view name;  // "templates/sync/forward.cuh"
  std::string_view text;
  std::string_view sha256;                  // of the text, in hex
  std::span<const std::uint16_t> includes;  // their indices among these files
};
std::span<const EmbeddedFile> embedded_templates();

}  // namespace flashjit
