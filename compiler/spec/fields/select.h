// select= in a spec: a call says by lists which rows of K each query sees, and in which order they come does not matter. An
// entry of keys(N) is the number of a row as K lies: in pages page * tokens of a page + token, packed the token among all,
// else the key of the sequence. An entry of pages(N) is the number of a page, whose rows follow each other in the list. For
// kernels each query is a sequence of its own, whose keys are the indices into its list. An index writes such lists. A mask, which
// asks where query and key are in the real sequence, is not theirs: it is moved to `list_mask`, by which the lists are cut first
// (launches/shown_keys.h). In a pool the call says where they are, and lists of pages become lists of keys.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

inline constexpr int kMostSelected = 65536;

// Returns the number of queries whose lists of pages a family may merge into one (launches/merged_lists.h), or 0. Packed queries
// belong to no sequence, and with numerics=batch_invariant the bits of a query may not depend on the lists of others.
int merged_queries(const AttentionSpec& spec);

// Returns how many keys a sequence of so many queries is expected to read by a merged list.
std::int64_t merged_keys(const AttentionSpec& spec, std::int64_t queries);

// The parts of validate() that are about it: what a spec with lists may have besides, and what its expressions may read. The
// second one moves the mask.
Result<void> check_selected(const AttentionSpec& spec);
Result<void> resolve_expressions_of_selected(AttentionSpec& spec);

}  // namespace flashjit
