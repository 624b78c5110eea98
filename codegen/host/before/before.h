// A call of attention on a processor does this work first.
#pragma once

#include <memory>

#include "codegen/host/backend.h"

namespace flashjit::host {

class Code;

// Returns a kernel that writes new rows of K and V, widens rows of latents, looks at lists of blocks and cuts lists of
// keys by a mask, where the spec asks for it, and then runs `attention`, which owns `code`.
Result<std::unique_ptr<HostKernel>> prepared_kernel(const AttentionSpec& spec, const Code& code,
                                                    std::unique_ptr<HostKernel> attention);

}  // namespace flashjit::host
