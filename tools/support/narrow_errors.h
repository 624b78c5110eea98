// These functions describe the cost of 8 bits, in the form in which `explain` shows it.
#pragma once

#include <string>

#include "compiler/narrow_error.h"
#include "compiler/plan.h"
#include "tools/support/output.h"

namespace flashjit {

Json error_json(const NarrowError& error);
std::string error_text(const NarrowError& error);

// Describes the errors of a kernel that reads Q, K and V of 8 bits: that of their rounding, which was done before, and
// that of its own weights. The text is empty for another kernel.
std::string narrow_errors(const Plan& plan, Json& line);

}  // namespace flashjit
