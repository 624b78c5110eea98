// New rows of K and V on a processor, before the attention of the same call.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

// A kernel that writes them, and then runs `attention`, whose Q it has rotated if the spec says so.
std::unique_ptr<HostKernel> appending_kernel(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention);

}  // namespace flashjit::host
