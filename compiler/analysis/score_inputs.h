// The tensors that a score function reads at every key.
#pragma once

#include <vector>

#include "compiler/language/expr.h"
#include "compiler/spec/spec.h"
#include "templates/kernel_config.h"

namespace flashjit {

// Returns the loads param[..., k] of elements of 16 or 32 bits that the score evaluates for every query and key, and
// whose parameter it reads nowhere else. A kernel may copy tiles of them as it copies tiles of K. Besides k there may
// be q, and two more indices, the outer ones, that are the same for all queries of a tile. A score with tanh has none,
// because it is evaluated twice. The loads are those of the simplified score, in order of first use, and kMaxInputs at
// most.
std::vector<Expr> score_inputs(const Expr& score);

// The first function notes in the config that a kernel's producer copies `inputs`, which are some of score_inputs().
// The second one returns the inputs that a config notes.
void set_inputs(const AttentionSpec& spec, const std::vector<Expr>& inputs, KernelConfig& config);
std::vector<Expr> copied_inputs(const AttentionSpec& spec, const KernelConfig& config);

inline constexpr int kMostOuterIndices = 2;
std::vector<Expr> outer_indices(const Expr& input);
// Returns the number of the index that is the query; -1: none is.
int query_index(const Expr& input);

// Returns true if the expression reads a tensor at an index that depends on the key. Other reads are done once for all
// scores of a row.
bool loads_per_key(const Expr& expr);

// Returns true if the score has further reads that depend on the key.
bool reads_beside_inputs(const Expr& score);

// Returns true if the expression reads a tensor, other than by `inputs`, at an index that depends on the query or the
// key.
bool loads_by_position(const Expr& expr, const std::vector<Expr>& inputs = {});
// Returns true if the score is `s` plus terms that do not depend on `s`.
bool only_adds(const Expr& score);

}  // namespace flashjit
