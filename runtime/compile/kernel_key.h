// The key names a kernel by everything that decides its bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/emit.h"
#include "compiler/plan.h"
#include "runtime/store/key.h"

namespace flashjit {

// `compiler` is NVRTC's identity, `options` are what it is called with.
StoreKey key_of(const Plan& plan, const KernelSource& source, std::string_view compiler,
                const std::vector<std::string>& options);
// Returns the key of a host kernel, which has no source: the key holds what its emitters read of a plan. `compiler` is
// the identity of the library that they are in.
StoreKey host_key_of(const Plan& plan, std::string_view compiler);

}  // namespace flashjit
