// What the fuzz targets share. A property that does not hold is a finding, as a crash is.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

namespace flashjit::fuzz {

// `a` and `b` are what the message shows of the case.
inline void require(bool holds, const char* property, std::string_view a, std::string_view b = {}) {
  if (holds) return;
  fmt::print(stderr, "property violated: {}\n  {}\n  {}\n", property, a, b);
  std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return size ? std::string_view(reinterpret_cast<const char*>(data), size) : std::string_view();
}

}  // namespace flashjit::fuzz
