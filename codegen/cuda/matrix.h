// The two matrix products of a hopper kernel as text: wgmma instructions, whose operands are as many as the tile is
// wide, which is why they cannot be a template.
#pragma once

#include <string>

#include "templates/kernel_config.h"

namespace flashjit {

std::string emit_matrix(const KernelConfig& config);

}  // namespace flashjit
