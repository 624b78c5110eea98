// The hopper family's part of the passes that place buffers and order copies.
#pragma once

#include "compiler/program/passes.h"

namespace flashjit {

// Adds Qs, Ks and Vs as TMA writes and WGMMA reads them.
void add_hopper_tiles(Program& program, const PassContext& context);

// Splits the program into a producer and consumers that hand each other the slots of rings.
Result<Program> split_roles(Program program, const PassContext& context);

}  // namespace flashjit
