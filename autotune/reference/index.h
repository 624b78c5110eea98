// An index is computed by its definition (compiler/SPEC.md, "Indexing"), in float64: sums over heads of weights times
// positive products.
//
// The rule for scores: each is as near as sums of fp32 are, or for elements of 8 bits as near as sums of the 13 bits
// that matrix units keep, in units of the terms. Exactly the scores of keys that are hidden, or not there, are
// -infinity. Lists have the numbers of keys whose scores are as large as that of any key that is not listed, within the
// same errors, in the order of keys, and -1 behind them.
#pragma once

#include "autotune/reference/compare.h"

namespace flashjit::reference {

// Does for an index what compare() does for attention.
Comparison compare_index(const Problem& problem, const CompareOptions& options);

}  // namespace flashjit::reference
