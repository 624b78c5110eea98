// Masks that read a tensor once for a block of positions, as keep[h, q / 64, k / 64]: whether two tiles have a block that is
// seen can be asked of the tensor itself, at a few positions of the tiles.
#pragma once

#include "compiler/language/expr.h"

namespace flashjit {

struct TileSizes;

// Says whether `condition`, which is the same for each block of positions, holds in some block of both tiles, over q_lo q_hi
// k_lo k_hi. It is true of other tiles than those of these sizes where they may have other blocks. Empty: it is no such
// condition.
Expr seen_in_blocks(const Expr& condition, const TileSizes& sizes);

}  // namespace flashjit
