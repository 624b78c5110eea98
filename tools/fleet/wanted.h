// A manifest asks for kernels, and a shard builds some of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/bundle/bundle.h"
#include "tools/fleet/shard.h"

namespace flashjit {

struct WantedKernel {
  // The texts are as written if `error` tells that they cannot be read.
  BundleKey key;
  std::string location;            // for example "manifest:3"
  std::optional<Request> request;  // It is absent if `error` tells why.
  std::optional<Error> error;
};

// Returns each kernel once, however often the manifest asks for it. `archs` are the targets of lines that name none.
std::vector<WantedKernel> wanted_kernels(const std::string& manifest, const std::vector<ManifestLine>& lines,
                                         const std::vector<std::string>& archs);

// Predicts how many milliseconds the compiler takes for a kernel, from the request alone. The schedule is left out,
// because its choice may differ between processors in the last bit of a predicted time.
std::uint64_t compile_cost(const Request& kernel);

// Returns the number of the shard that builds each kernel. None of them has an error.
std::vector<int> deal_kernels(const std::vector<WantedKernel>& wanted, int count);

// Leaves the kernels of the shard, and returns the description for its bundle. If there are kernels that cannot be
// read, only these are left: every shard then refuses the manifest, before anything is compiled.
BundleShards take_shard(const Shard& shard, std::vector<WantedKernel>& wanted);

}  // namespace flashjit
