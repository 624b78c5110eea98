// Prints the matrix products that warpgroups issue: wgmma instructions, which have as many operands as the tile is
// wide, and so cannot be a template. The text is empty if the program has none.
#pragma once

#include <string>

#include "compiler/program/ir.h"

namespace flashjit {

std::string emit_matrix(const Program& program);

}  // namespace flashjit
