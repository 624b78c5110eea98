// Files tell which shards are in them. This checks whether these are all that there are.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct HeldShards {
  std::string file;
  // A description with a digest, which all shards of one whole have.
  std::string whole;
  int count = 0;  // number of shards of the whole
  std::vector<int> numbers;
};

// Error NotFound names, for each whole, the shards that no file has, and the files that have others of it. Files of
// several wholes are complete if each whole is.
Result<void> check_complete(std::span<const HeldShards> held);

// Returns the beginning of a digest, as messages show it.
std::string_view short_digest(std::string_view digest);

}  // namespace flashjit
