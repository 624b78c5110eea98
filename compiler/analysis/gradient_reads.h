// The reads by which a score takes the parameters whose gradients a spec asks for, and how kernels sum up what its scores
// give there.
#pragma once

#include <vector>

#include "compiler/analysis/read_index.h"
#include "compiler/result.h"
#include "compiler/spec/spec.h"
#include "templates/kernel_config.h"

namespace flashjit {

struct GradientRead {
  Expr read, derivative;  // as ReadGradient
  int gradient = 0;       // of which parameter: the number in params_with_gradients(), and in KernelParams::d_extra
  ReadIndex index;
  bool alone = false;  // nothing else reads this parameter
  GradientSum sum = GradientSum::runs;
  // Elements are summed in a fixed order where the scores of a KV head's queries are computed key by key, or tile by tile
  // of keys, by one block for each, and its query heads one after the other.
  bool ordered = false;
};

Result<std::vector<GradientRead>> gradient_reads(const AttentionSpec& spec);

// The number of neighbouring query heads that read the same elements, for a plain index.
int heads_that_share(const GradientRead& read, const AttentionSpec& spec);

// Does a kernel's producer bring what is read there, one of these inputs?
bool is_in_tiles(const GradientRead& read, const std::vector<Expr>& inputs);
// Does the score read tensors by position that no producer brings, or a derivative any?
Result<bool> loads_by_position(const AttentionSpec& spec, const KernelConfig& config);

// The names of those parameters, for gradients_of().
std::vector<std::string> names_of_gradients(const AttentionSpec& spec);

}  // namespace flashjit
