// Rows of 8 bits are bound by memory on a processor, as merges are, so no code is generated for them.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

std::unique_ptr<HostKernel> quantize_kernel(const AttentionSpec& spec);

}  // namespace flashjit::host
