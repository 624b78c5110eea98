// This is done first by a call of attention on a processor.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

// A kernel that writes new rows of K and V, widens rows of latents and looks at lists of blocks, if the spec says so, and then
// runs `attention`.
std::unique_ptr<HostKernel> prepared_kernel(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention);

}  // namespace flashjit::host
