// The part of verify() for programs with a producer and consumers.
#pragma once

#include "compiler/program/ir.h"

namespace flashjit {

bool has_roles(const Program& program);

// Executes both roles on the rings of shared memory, for loops of several lengths: every slot is awaited before it
// is filled or read, released after the last product that reads it, and nobody waits for ever.
Result<void> check_roles(const Program& program);

}  // namespace flashjit
