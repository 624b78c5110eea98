// The optional host backend (LLVM), opened on first use.
#pragma once

#include "codegen/host/backend.h"
#include "compiler/result.h"

namespace flashjit {

// Error NotFound with the remedy. The backend lives as long as the process.
Result<HostBackend*> host_backend();

}  // namespace flashjit
