// Writes new rows of K and V on a processor, before the attention of the same call.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

// Returns a kernel that writes new rows, and then runs `attention`, whose Q it has rotated if the spec asks for that.
std::unique_ptr<HostKernel> appending_kernel(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention);

}  // namespace flashjit::host
