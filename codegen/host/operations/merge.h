// Merges on a processor. They are bound by memory, and a compiler at run time could improve nothing, so no code is
// generated for them.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

std::unique_ptr<HostKernel> merge_kernel(const AttentionSpec& spec);

}  // namespace flashjit::host
