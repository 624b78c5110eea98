// A kernel is tried once, where it will run, to see whether it computes what its spec asks for.
#pragma once

#include <string>

#include "compiler/result.h"
#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"

namespace flashjit {

// runtime/compile/verify.h tells what it returns. The tensors are drawn, and always the same ones.
Result<std::string> verify_here(const AttentionSpec& spec, Kernel& kernel, const GpuContext* gpu);

}  // namespace flashjit
