// Everything from a request to the object file of a processor's kernel. What is kept of a kernel, and where, is as for
// GPUs; there is one schedule, and no source.
#pragma once

#include "runtime/compile/compile.h"
#include "runtime/engine/host_library.h"

namespace flashjit {

// Error: FLASHJIT_JIT=off, with which nothing opens a compiler.
Result<void> check_host_jit(const EnvironmentSettings& settings);

// Of `options` settings, store, dump and bounds count. The payload of `binary` is for HostBackend::link.
Result<Compiled> compile_host_spec(const Request& request, const HostLibrary& library, const CompileOptions& options);
// What that would take from the store, without a compile.
Result<StoredSpec> find_host_spec(const Request& request, const HostLibrary& library, const CompileOptions& options);

}  // namespace flashjit
