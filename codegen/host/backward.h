// Gradients are compiled kernels, with loops around them.
#pragma once

#include <memory>

#include "codegen/host/backend.h"
#include "codegen/host/config.h"
#include "codegen/host/emit/ir.h"
#include "codegen/host/jit.h"

namespace flashjit::host {

Result<void> emit_gradients(Ir& ir, const Plan& plan);
Result<std::unique_ptr<HostKernel>> gradients_kernel(const Plan& plan, const HostConfig& config,
                                                     std::unique_ptr<Code> code);

}  // namespace flashjit::host
