// The optional host backend (LLVM), opened on first use.
#pragma once

#include <string>

#include "codegen/host/backend.h"
#include "compiler/result.h"

namespace flashjit {

struct HostLibrary {
  HostBackend& backend;
  std::string identity;  // LLVM's version and the library's build: one of two things that decide a kernel's code
};

// Error NotFound with the remedy. The library lives as long as the process.
Result<const HostLibrary*> host_library();

}  // namespace flashjit
