// A shard is what one of several machines does of a work that all of them were given whole, each with a number of its own. Who
// does what follows from the work alone: not from its order, from a machine, or from what others have done.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"
#include "runtime/bundle/format.h"

namespace flashjit {

struct Shard {
  int number = 1, count = 1;  // from 1 to `count`
};

inline constexpr int kMostShards = static_cast<int>(kMaxBundleShards);

// "3/16"; messages begin with "--shard".
Result<Shard> parse_shard(std::string_view text);
std::string print(const Shard& shard);
// Returns numbers as people write them, "3, 7 and 9", and the first ones where there are many.
std::string numbers_text(std::span<const int> numbers);

// A piece is what one machine does whole. No two have the same key.
struct Piece {
  std::string key;
  std::uint64_t cost = 0;  // predicted, in any unit; whole, so that all machines see the same
};

// Returns the number of the shard that each piece belongs to. The dearest piece comes first, and of equally dear ones the first
// key; each goes to the shard that has the least to do so far, and of such to the first one.
std::vector<int> deal(std::span<const Piece> pieces, int count);

}  // namespace flashjit
