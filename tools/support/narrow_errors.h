// What 8 bits cost, as `explain` says it.
#pragma once

#include <string>

#include "compiler/narrow_error.h"
#include "compiler/plan.h"
#include "tools/support/output.h"

namespace flashjit {

Json error_json(const NarrowError& error);
std::string error_text(const NarrowError& error);

// Of a kernel that reads Q, K and V of 8 bits: of their rounding, which was done before, and of its own weights. Empty: of
// another.
std::string narrow_errors(const Plan& plan, Json& line);

}  // namespace flashjit
