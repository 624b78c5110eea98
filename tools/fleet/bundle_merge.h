// Several bundles are put into one. Where there are shards among them, or a manifest says what is wanted, nothing may be missing.
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
  std::string manifest;            // empty: what shards say of themselves is all that is checked
  std::vector<std::string> archs;  // of the manifest's lines that name none
  bool partial = false;            // shards may be missing; the result then says which it has
};

struct MergedBundle {
  std::vector<std::uint8_t> bytes;
  std::size_t kernels = 0, twice = 0, differing = 0;  // differing: of `twice`, those whose code or facts differ
  std::optional<BundleShards> shards;                 // what is there, where it is not all
};

// A kernel that several bundles have is taken from the first that has it. Code is checked, but neither made anew nor
// compressed again. Errors: bundles of different versions; and of what is checked, kernels or shards that are missing, shards
// of different manifests, kernels that differ between bundles.
Result<MergedBundle> merge_bundles(const MergeArgs& args);

}  // namespace flashjit
