// Each rank has two runs of the tokens, and a mask leaves a part of what the queries of one and the keys of another make.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/spec/spec.h"

namespace flashjit {

// contiguous: rank r has the runs 2r and 2r + 1 of as many as there are; zigzag: the runs r and 2R - 1 - r.
enum class TokenOrder { Contiguous, Zigzag };
std::string_view name(TokenOrder order);

class Sights {
 public:
  // Lengths are multiples of 2 * ranks. Numbers that a mask reads count as nothing that limits it.
  Sights(const AttentionSpec& spec, const Shape& whole, int ranks, TokenOrder order);

  int ranks() const { return ranks_; }
  // The share of the scores of the queries of one rank with the keys of another that the mask leaves.
  double seen(int queries, int keys) const { return seen_[at(queries, keys)]; }
  // The share of the keys of one rank that must be sent for the queries of another: of each run those from the first that is
  // seen to the last.
  double needed(int queries, int keys) const { return needed_[at(queries, keys)]; }
  double mean_seen() const;  // of all scores
  // Returns the share of the scores with its queries that the mask leaves to the rank with most: that one is waited for.
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
