// Files say which shards are in them. Here it is found out whether these are all that there are.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct HeldShards {
  std::string file;
  std::string whole;  // in words, with a digest: shards of one whole say the same
  int count = 0;      // of the shards of the whole
  std::vector<int> numbers;
};

// Error NotFound: names, for each whole, the shards that no file has, and the files that have others of it. Files of several
// wholes are complete if each whole is.
Result<void> check_complete(std::span<const HeldShards> held);

// The beginning of a digest, as messages show it.
std::string_view short_digest(std::string_view digest);

}  // namespace flashjit
