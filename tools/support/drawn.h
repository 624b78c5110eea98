// This is the problem of one run. If no file has Q, K and V of 8 bits, they come about as a user's do: numbers are
// drawn, and rounded as `quantize` rounds. The numbers are kept, to tell how far a result is from theirs.
#pragma once

#include <optional>

#include "autotune/measure/problem.h"

namespace flashjit {

struct DrawnProblem {
  struct Unrounded {
    AttentionSpec spec;
    ProblemData data;
  };
  ProblemData data;
  std::optional<Unrounded> unrounded;

  static Result<DrawnProblem> create(const AttentionSpec& spec, const ProblemShape& shape, const InputFiles& inputs,
                                     std::uint64_t seed);
};

}  // namespace flashjit
