// select= in a spec: lists of a call tell which rows of K each query sees. The order of a list does not matter.
// An entry of keys(N) is the number of a row as K lies: page * tokens of a page + token in pages, the number among all
// tokens in a packed layout, and otherwise the key of the sequence. An entry of pages(N) is the number of a page, whose
// rows follow each other in the list. An index writes such lists.
// In kernels each query is a sequence of its own, whose keys are the indices into its list, unless the lists of a few
// queries are merged. A mask asks for positions in the real sequence, so kernels do not evaluate it: it is moved to
// `list_mask`, by which the lists are cut first (launches/shown_keys.h). For a pool the call gives the positions, and
// lists of pages become lists of keys.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

inline constexpr int kMostSelected = 65536;

// Returns the number of queries whose lists of pages a family may merge into one (launches/merged_lists.h), or 0.
// Packed queries belong to no sequence, and with numerics=batch_invariant the bits of a query may not depend on the
// lists of others.
int merged_queries(const AttentionSpec& spec);

// Returns how many keys a sequence of so many queries is expected to read by a merged list.
std::int64_t merged_keys(const AttentionSpec& spec, std::int64_t queries);

// validate() calls both. The first one checks which fields a spec with lists may have besides. The second one checks
// what its expressions may read, and moves the mask.
Result<void> check_selected(const AttentionSpec& spec);
Result<void> resolve_expressions_of_selected(AttentionSpec& spec);

}  // namespace flashjit
