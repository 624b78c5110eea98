// The reads of parameters whose gradients a spec asks for, and the ways in which kernels sum up the contributions of
// scores to them.
#pragma once

#include <vector>

#include "compiler/analysis/read_index.h"
#include "compiler/result.h"
#include "compiler/spec/spec.h"
#include "templates/kernel_config.h"

namespace flashjit {

struct GradientRead {
  Expr read, derivative;  // They are as in ReadGradient.
  // The number of the parameter in params_with_gradients(), and in KernelParams::d_extra.
  int gradient = 0;
  ReadIndex index;
  bool alone = false;  // Nothing else reads this parameter.
  GradientSum sum = GradientSum::runs;
  // Elements are summed in a fixed order if one block computes the scores of a KV head's queries key by key, or tile by
  // tile of keys, and takes the query heads one after the other.
  bool ordered = false;
};

Result<std::vector<GradientRead>> gradient_reads(const AttentionSpec& spec);

// Returns the number of neighbouring query heads that read the same elements. The index must be plain.
int heads_that_share(const GradientRead& read, const AttentionSpec& spec);

// Returns true if a kernel's producer copies the elements of the read, because it is one of these inputs.
bool is_in_tiles(const GradientRead& read, const std::vector<Expr>& inputs);
// Returns true if the score reads tensors by position that no producer copies, or if a derivative reads any by
// position.
Result<bool> loads_by_position(const AttentionSpec& spec, const KernelConfig& config);

// Returns the names of the parameters with gradients, for gradients_of().
std::vector<std::string> names_of_gradients(const AttentionSpec& spec);

}  // namespace flashjit
