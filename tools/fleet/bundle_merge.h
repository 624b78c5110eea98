// Several bundles are put into one. If there are shards among them, or a manifest lists what is wanted, nothing may be
// missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/result.h"
#include "runtime/bundle/bundle.h"

namespace flashjit {

struct MergeArgs {
  std::vector<std::string> files;
  std::string manifest;            // If it is empty, only what shards state about themselves is checked.
  std::vector<std::string> archs;  // targets of the manifest's lines that name none
  bool partial = false;            // Shards may be missing. The result then states which it has.
};

struct MergedBundle {
  std::vector<std::uint8_t> bytes;
  std::size_t kernels = 0, twice = 0, differing = 0;  // `differing` counts those of `twice` whose code or facts differ.
  std::optional<BundleShards> shards;                 // the shards that are there, if some are missing
};

// A kernel that several bundles have is taken from the first that has it. Code is checked, but neither made anew nor
// compressed again. Errors: bundles of different versions; and, as far as they are checked, kernels or shards that are
// missing, shards of different manifests, and kernels that differ between bundles.
Result<MergedBundle> merge_bundles(const MergeArgs& args);

}  // namespace flashjit
