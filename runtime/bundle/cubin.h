// This check needs no GPU: it tells that machine code is a cubin, for which target it is, and which entries it has. It
// does not tell what the instructions do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

// Errors say what is wrong with the bytes, without a name for them.
Result<void> check_cubin(std::span<const std::uint8_t> code, std::string_view target,
                         std::span<const std::string> entries);

}  // namespace flashjit
