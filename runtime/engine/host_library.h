// The optional host backend (LLVM), opened on first use.
#pragma once

#include <string>

#include "codegen/host/backend.h"
#include "compiler/result.h"

namespace flashjit {

struct HostLibrary {
  HostBackend& backend;
  // It contains LLVM's version and the library's build, one of the two things that decide a kernel's code.
  std::string identity;
};

// Opens the library, which then lives as long as the process. A missing library is an error NotFound with the remedy.
Result<const HostLibrary*> host_library();

}  // namespace flashjit
