// Does a kernel compute what its spec says? Tried once, where it will run.
#pragma once

#include <string>

#include "compiler/result.h"
#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"

namespace flashjit {

// runtime/compile/verify.h says what it returns. The tensors are drawn, always the same ones.
Result<std::string> verify_here(const AttentionSpec& spec, Kernel& kernel, const GpuContext* gpu);

}  // namespace flashjit
