// Prints the program as the kernel: each statement of its bodies is a line of CUDA.
#pragma once

#include <string>
#include <string_view>

#include "compiler/program/ir.h"
#include "compiler/result.h"

namespace flashjit {

inline constexpr std::string_view kLoopFile = "loop.gen.cuh";

// Returns the text behind the first line, which calls functions in the folder of the program's vocabulary. The text is
// empty if the program is a picture, and templates/ have the loop.
Result<std::string> emit_loop(const Program& program);

}  // namespace flashjit
