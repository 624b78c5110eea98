// These functions compile kernels, and put loops over batch, heads and tiles around them.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

// Neither function checks whether this processor can run the plan's target.
Result<std::vector<std::uint8_t>> compile_kernel(const Plan& plan, bool naive);
Result<std::unique_ptr<HostKernel>> link_kernel(const Plan& plan, bool naive, std::span<const std::uint8_t> object);

Result<std::string> optimised_ir(const Plan& plan);

}  // namespace flashjit::host
