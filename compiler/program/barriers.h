// Checks the barriers of a printed program: each must let go when as many threads have arrived as do arrive.
#pragma once

#include "compiler/program/ir.h"

namespace flashjit {

// Counts who arrives in the bodies of all roles. It is an error if nobody sets up a barrier of slots, if it is set up
// for another number of arrivals, or if other threads are not told of it before roles begin.
Result<void> check_barriers(const Program& program);

}  // namespace flashjit
