// This is done first by a call of attention on a processor.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

class Code;

// A kernel that writes new rows of K and V, widens rows of latents, looks at lists of blocks and cuts lists of keys by a mask, if
// the spec says so, and then runs `attention`, which owns `code`.
Result<std::unique_ptr<HostKernel>> prepared_kernel(const AttentionSpec& spec, const Code& code,
                                                    std::unique_ptr<HostKernel> attention);

}  // namespace flashjit::host
