// A manifest asks for kernels, of which a shard builds some.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/bundle/bundle.h"
#include "tools/fleet/shard.h"

namespace flashjit {

struct WantedKernel {
  BundleKey key;                   // as written while `error` says that it cannot be read
  std::string location;            // "manifest:3"
  std::optional<Request> request;  // none: `error` says why
  std::optional<Error> error;
};

// Each kernel once, however often the manifest asks for it. `archs`: targets of the lines that name none.
std::vector<WantedKernel> wanted_kernels(const std::string& manifest, const std::vector<ManifestLine>& lines,
                                         const std::vector<std::string>& archs);

// Predicts how many milliseconds the compiler takes for a kernel, from what the request says alone. The schedule is left out of
// it, because the choice of one may differ between processors in the last bit of a predicted time.
std::uint64_t compile_cost(const Request& kernel);

// Returns the number of the shard that builds each kernel; none of them has an error.
std::vector<int> deal_kernels(const std::vector<WantedKernel>& wanted, int count);

// Leaves the kernels of the shard, and returns what its bundle says of itself. Where there are kernels that cannot be read,
// these are left and no others: every shard then refuses the manifest, before anything is compiled.
BundleShards take_shard(const Shard& shard, std::vector<WantedKernel>& wanted);

}  // namespace flashjit
