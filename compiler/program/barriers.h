// The barriers of a program that is printed: does each let go when as many threads have arrived as do?
#pragma once

#include "compiler/program/ir.h"

namespace flashjit {

// Counts who arrives in the bodies of all roles. Error: a barrier of slots that nobody sets up, or for another number of
// arrivals, or that is not told to the other threads before roles begin.
Result<void> check_barriers(const Program& program);

}  // namespace flashjit
