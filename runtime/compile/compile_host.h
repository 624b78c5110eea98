// These functions do everything from a request to the object file of a processor's kernel. The store keeps such a
// kernel in the same form and order as one for GPUs. There is one schedule, and no source.
#pragma once

#include "runtime/compile/compile.h"
#include "runtime/engine/host_library.h"

namespace flashjit {

// It is an error if FLASHJIT_JIT=off, because nothing may open a compiler then.
Result<void> check_host_jit(const EnvironmentSettings& settings);

// Only settings, store, dump and bounds of `options` count. The payload of `binary` is for HostBackend::link.
Result<Compiled> compile_host_spec(const Request& request, const HostLibrary& library, const CompileOptions& options);
// Returns what compile_host_spec would take from the store, without a compile.
Result<StoredSpec> find_host_spec(const Request& request, const HostLibrary& library, const CompileOptions& options);

}  // namespace flashjit
