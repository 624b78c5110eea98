// What a kernel would tell the driver.
#pragma once

#include <string>

#include "codegen/cuda/emit.h"
#include "compiler/plan.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::replay {

// Loads the kernel on a driver that only records and runs it: grid, block, shared memory, the parameter block field by
// field and the tensor maps, or the error. The same launch gives the same text however the parameter block is laid out.
std::string launch_text(const Plan& plan, const KernelSource& source, const Arguments& arguments);

}  // namespace flashjit::replay
