// The matrix products that warpgroups issue, as text: wgmma instructions, whose operands are as many as the tile is
// wide, which is why they cannot be a template. Empty: the program has none.
#pragma once

#include <string>

#include "compiler/program/ir.h"

namespace flashjit {

std::string emit_matrix(const Program& program);

}  // namespace flashjit
