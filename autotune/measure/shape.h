// --shape gives the sizes of one problem:
//   b=2,q=4096,k=4096     dense; b defaults to 1, k to q
//   q=100+37+0,k=100+64+9 packed: the lengths of the sequences, one after the other (b=3,q=100 is 100+100+100)
//   q=1,k=100+64+9        k_lens: the lengths of keys; K and V have room for the longest
//   b=64,q=1,k=64..32768  k_lens or packed: drawn, as many short as long ones (log-uniform), the same each time
//   q=1,parts=3           merges
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/result.h"
#include "compiler/spec/spec.h"

namespace flashjit {

struct ProblemShape {
  std::int64_t batch = 1;
  // One length for each of the `batch` sequences. All are equal if the spec allows no others.
  std::vector<std::int64_t> q, k;

  std::int64_t q_tokens() const;  // sum over all sequences
  std::int64_t k_tokens() const;
  std::int64_t longest_q() const;
  std::int64_t longest_k() const;
};

Result<ProblemShape> parse_shape(std::string_view text, const AttentionSpec& spec);
std::string print(const ProblemShape& shape);

// Returns the problem as the cost model and records see it: packed sequences count by their mean lengths.
Shape shape_of(const ProblemShape& shape);
// Returns the same for PrepareOptions::shape. It is empty if a size is 0, because there is nothing to choose then.
std::string hint_of(const ProblemShape& shape);

}  // namespace flashjit
