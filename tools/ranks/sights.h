// Each rank has two runs of the tokens. A mask leaves a part of the scores of the queries of one run with the keys of
// another.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// Contiguous gives rank r the runs 2r and 2r + 1. Zigzag gives it the runs r and 2R - 1 - r, for R ranks.
enum class TokenOrder { Contiguous, Zigzag };
std::string_view name(TokenOrder order);

class Sights {
 public:
  // Lengths are multiples of 2 * ranks. Numbers that a mask reads count as if they limited nothing.
  Sights(const AttentionSpec& spec, const Shape& whole, int ranks, TokenOrder order);

  int ranks() const { return ranks_; }
  // Returns the share of the scores of one rank's queries with another rank's keys that the mask leaves.
  double seen(int queries, int keys) const { return seen_[at(queries, keys)]; }
  // Returns the share of one rank's keys that must be sent for another rank's queries: in each run those from the first
  // to the last that is seen.
  double needed(int queries, int keys) const { return needed_[at(queries, keys)]; }
  double mean_seen() const;  // share of all scores
  // Returns the largest share of scores that the mask leaves to the queries of a rank, because the others wait for that
  // rank.
  double most_seen() const;

 private:
  std::size_t at(int queries, int keys) const {
    return static_cast<std::size_t>(queries) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(keys);
  }
  int first_run(int rank) const;
  int second_run(int rank) const;
  int owner(int run) const;

  int ranks_;
  TokenOrder order_;
  std::vector<double> seen_, needed_;
};

}  // namespace flashjit
