// A kernel is tried before it is trusted: once, on small random data, against the float64 reference. The outcome is
// among the facts of the kernel's entry in the store, so that it is tried only once, and so that nobody takes a kernel
// that somebody found wrong.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/compile/compile.h"
#include "runtime/driver/device_memory.h"

namespace flashjit {

// A verifier returns what a kernel computes wrongly, naming an element, or an empty text if nothing is wrong. `gpu` is
// where the kernel's memory is; it is null on the host. An error means that the kernel could not be tried.
using Verifier = Result<std::string> (*)(const AttentionSpec& spec, Kernel& kernel, const GpuContext* gpu);
// A folder that builds on this one tries kernels. Where it is linked in, it registers its function here.
void set_verifier(Verifier verifier);
Result<std::string> verify_kernel(const AttentionSpec& spec, Kernel& kernel, const GpuContext* gpu);

// Returns what was found wrong with the kernel, or an empty text if nothing was, or if it was never tried.
std::string_view known_wrong(const StoreFacts& facts);
// Returns whether the kernel was tried and nothing was wrong.
bool is_verified(const StoreFacts& facts);

// Fetches the code of `compiled` from the store, or has `make` make it. With `options.verify` it has been tried.
Result<KernelStore::Fetched> fetch_kernel(const Compiled& compiled, const CompileOptions& options,
                                          const std::function<Result<StoreEntry>()>& make);

// Returns why kernels are tried unasked: a compiler or a driver is newer than those that all tests have passed with.
// The text is empty if neither is. Versions are counted as the driver counts them: 13010 is 13.1.
std::string why_untested(int nvrtc, int driver);

}  // namespace flashjit
