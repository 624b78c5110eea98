// Some masks read a tensor once for a block of positions, as keep[h, q / 64, k / 64]. A few reads of the tensor at
// positions of two tiles then tell whether the tiles have a block that is seen.
#pragma once

#include "compiler/language/expr.h"

namespace flashjit {

struct TileSizes;

// Returns an expression over q_lo q_hi k_lo k_hi that tells whether `condition`, which is the same for each block of
// positions, holds in some block of both tiles. For tiles of other sizes it is true where they may overlap further
// blocks. It is empty if the condition is not of this kind.
Expr seen_in_blocks(const Expr& condition, const TileSizes& sizes);

}  // namespace flashjit
