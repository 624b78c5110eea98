// Along which axes of the scores a mask reads tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/language/expr.h"

namespace flashjit {

// Does it depend on a query's or a key's position?
bool changes(const Expr& e);
// Does it read a tensor at an index that has one of these in it?
bool reads_at(const Expr& e, Variable q, Variable k);
// Is it read at the positions of one axis, and the same for all tiles of the other?
bool is_read_along_one(const Expr& e);

// The number of positions of a variable that read the same element, as the 128 of `keep[h, q / 128, k / 128]`: what all such
// have in common. 0: there are none.
std::int64_t block_of_reads(const Expr& mask, Variable variable);

// From multiples of this on, so many positions of a variable have the same value each: 64 for `keep[h, q / 64, k]` and Q. 0:
// all of them have.
std::int64_t equal_run(const Expr& e, Variable variable);

// `e` with these in place of the positions of a query and a key.
Expr at_positions(const Expr& e, const Expr& q, const Expr& k);

// Does a mask read or compute something of a query alone, or of a key alone, which is worth finding once?
bool reads_along_one(const Expr& mask);

// A mask whose reads and divisions along one axis are taken out of it. Who asks for many queries and keys at a time finds each
// once.
struct SeparatedMask {
  // An int, and the scalar that stands for it.
  struct Value {
    Axis axis = Axis::Keys;
    Expr value;
    Param scalar;
  };
  std::vector<Value> values;
  Expr visible;
};
SeparatedMask separate_reads(const Expr& mask);

// A mask as two conditions that both must hold: one on what is read at a query and at a key, wherever they are, and a range
// along one axis of what a position of the other sees. As document(doc) & causal.
struct ReadsAndRange {
  Expr by_reads;
  TileAnalysis range;
};
std::optional<ReadsAndRange> reads_and_range(const SeparatedMask& mask, Axis along);

}  // namespace flashjit
