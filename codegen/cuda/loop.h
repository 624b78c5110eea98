// The program as the kernel: each statement of its bodies is a line of CUDA.
#pragma once

#include <string>
#include <string_view>

#include "compiler/program/ir.h"
#include "compiler/result.h"

namespace flashjit {

// The text of loop.gen.cuh behind its first line, which calls what the files of the folder `vocabulary` have; empty: there is
// no such folder, and templates/ have the loop.
Result<std::string> emit_loop(const Program& program, std::string_view vocabulary);

}  // namespace flashjit
