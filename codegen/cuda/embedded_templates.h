// The files of templates/ are embedded at build time.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace flashjit {

struct EmbeddedFile {
  std::string_view name;  // It is "templates/sync/forward.cuh", for example.
  std::string_view text;
  std::string_view sha256;                  // The digest of the text, in hex.
  std::span<const std::uint16_t> includes;  // The indices of included files among these files.
};
std::span<const EmbeddedFile> embedded_templates();

}  // namespace flashjit
