// Several machines are given the same whole work, each with a number of its own, and a shard is what one of them does.
// The work alone decides who does what: not its order, not the machine, and not what others have done.
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

// Parses a text such as "3/16"; messages begin with "--shard".
Result<Shard> parse_shard(std::string_view text);
std::string print(const Shard& shard);
// Returns numbers as people write them, "3, 7 and 9", and only the first ones if there are many.
std::string numbers_text(std::span<const int> numbers);

// A piece is done whole by one machine. No two pieces have the same key.
struct Piece {
  std::string key;
  // It is predicted, in any unit, and a whole number so that all machines see the same.
  std::uint64_t cost = 0;
};

// Returns the number of the shard that each piece belongs to. The dearest piece comes first, and among equally dear
// ones the first key. Each goes to the shard that has the least to do so far, and among equal ones to the first.
std::vector<int> deal(std::span<const Piece> pieces, int count);

}  // namespace flashjit
