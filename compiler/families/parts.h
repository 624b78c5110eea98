// Loops that split keys among blocks (decode, mla) leave parts of row tiles in the workspace, which a launch adds up.
#pragma once

#include <string>

#include "compiler/launch.h"
#include "templates/decode/layout.h"

namespace flashjit {

// Memory for parts: of tiles that are not a range's alone, where there are so many ranges; with fixed parts, of all.
WorkspaceBuffer parts_buffer(const KernelConfig& config, int ranges);

// The second launch: its threads have columns of rows, four at a time; with fixed parts each has one such group.
GridRule combine_grid(const KernelConfig& config, int blocks_per_sm);

// For `explain`: how fixed parts are cut.
std::string describe_fixed_parts(const KernelConfig& config);

}  // namespace flashjit
