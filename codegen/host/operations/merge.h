// Merges on a processor. They are bound by memory, and have nothing in them that a compiler at run time would make
// better: no code is generated for them.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

std::unique_ptr<HostKernel> merge_kernel(const AttentionSpec& spec);

}  // namespace flashjit::host
