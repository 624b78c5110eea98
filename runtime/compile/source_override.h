// Source files of a folder can replace the generated ones, for people who edit and run.
#pragma once

#include <string>

#include "codegen/cuda/emit.h"

namespace flashjit {

// Replaces every file of `source` that `folder` (as FLASHJIT_DUMP_DIR or `flashjit compile --out` writes it) has under
// the same name. The note that is returned tells what differs. Errors: Invalid when the folder was made for another
// spec or schedule, or has a file that is no source of this kernel; Io when one cannot be read.
Result<std::string> override_source(const std::string& folder, const Plan& plan, KernelSource& source);

}  // namespace flashjit
