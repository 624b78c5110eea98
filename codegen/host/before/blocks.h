// Looks at lists of blocks that a call gives (blocks= in a spec), before attention runs.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

std::unique_ptr<HostKernel> kernel_in_blocks(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention);

}  // namespace flashjit::host
