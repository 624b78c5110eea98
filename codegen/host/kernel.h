// Compiled kernels and the loops over batch, heads and tiles around them.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

// Without asking whether this processor can run the plan's target.
Result<std::unique_ptr<HostKernel>> compile_kernel(const Plan& plan, bool naive);

Result<std::string> optimised_ir(const Plan& plan);

}  // namespace flashjit::host
