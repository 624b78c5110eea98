// The tensors that a score function reads at every key.
#pragma once

#include <vector>

#include "compiler/language/expr.h"
#include "compiler/spec/spec.h"
#include "templates/kernel_config.h"

namespace flashjit {

// The loads param[..., k] of elements of 16 or 32 bits that the score evaluates for every query and key, of parameters
// that it reads nowhere else: a kernel may copy tiles of them as it copies those of K. Beside k there may be q and two
// more indices, the outer ones, that are the same for all queries of a tile. None where it takes tanh, because then it
// is evaluated twice. They are loads of the simplified score, in order of first use, kMaxInputs at most.
std::vector<Expr> score_inputs(const Expr& score);

// A kernel's producer copies `inputs`, some of those; which of them does it copy?
void set_inputs(const AttentionSpec& spec, const std::vector<Expr>& inputs, KernelConfig& config);
std::vector<Expr> copied_inputs(const AttentionSpec& spec, const KernelConfig& config);

inline constexpr int kMostOuterIndices = 2;
std::vector<Expr> outer_indices(const Expr& input);
// Says which index is the query; -1: none.
int query_index(const Expr& input);

// Does the expression read a tensor at an index that depends on the key? Others are read once for all scores of a row.
bool loads_per_key(const Expr& expr);

// Does it read anything else that depends on the key?
bool reads_beside_inputs(const Expr& score);

// Does the expression read a tensor, but for `inputs`, at an index that depends on the query or the key?
bool loads_by_position(const Expr& expr, const std::vector<Expr>& inputs = {});
// Is the score `s` plus what does not depend on `s`?
bool only_adds(const Expr& score);

}  // namespace flashjit
