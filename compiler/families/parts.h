// Loops that split keys among blocks (decode, mla) leave parts of row tiles in the workspace, and a launch adds these
// up.
#pragma once

#include <string>

#include "compiler/launch.h"
#include "templates/decode/layout.h"

namespace flashjit {

// Returns the memory for parts. With ranges only tiles that several ranges share have parts; with fixed parts all tiles
// have.
WorkspaceBuffer parts_buffer(const KernelConfig& config, int ranges);

// Returns the grid of the second launch, whose threads have columns of rows, four at a time. With fixed parts each has
// one such quad.
GridRule combine_grid(const KernelConfig& config, int blocks_per_sm);

// Returns the text of `explain` about the cut into fixed parts.
std::string describe_fixed_parts(const KernelConfig& config);

}  // namespace flashjit
