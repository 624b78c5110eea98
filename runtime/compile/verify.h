// Kernels are tried before they are trusted: once, on small random data, against the float64 reference. The outcome is
// among the facts of the kernel's entry in the store, so that it is done once, and so that nobody takes a kernel that
// somebody found wrong.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/compile/compile.h"
#include "runtime/driver/device_memory.h"

namespace flashjit {

// A verifier returns what a kernel computes wrongly, naming an element; empty: nothing. `gpu` is where the kernel's
// memory is; null: on the host. Error: the kernel could not be tried.
using Verifier = Result<std::string> (*)(const AttentionSpec& spec, Kernel& kernel, const GpuContext* gpu);
// Trying is the business of a folder that builds on this one. Where that is linked in, it says here how.
void set_verifier(Verifier verifier);
Result<std::string> verify_kernel(const AttentionSpec& spec, Kernel& kernel, const GpuContext* gpu);

// Returns what was found wrong with the kernel; empty: nothing, or it was never tried.
std::string_view known_wrong(const StoreFacts& facts);
// It was tried, and nothing was wrong.
bool is_verified(const StoreFacts& facts);

// The code of `compiled` from the store, or made by `make`; with `options.verify` it has been tried.
Result<KernelStore::Fetched> fetch_kernel(const Compiled& compiled, const CompileOptions& options,
                                          const std::function<Result<StoreEntry>()>& make);

// Why kernels are tried unasked: a compiler or a driver that is newer than those that all tests have passed with. Empty:
// neither is. Versions as the driver counts them: 13010 is 13.1.
std::string why_untested(int nvrtc, int driver);

}  // namespace flashjit
