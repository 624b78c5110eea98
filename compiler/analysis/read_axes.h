// The axes of the scores along which a mask reads tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/language/expr.h"

namespace flashjit {

// Returns true if `e` depends on a query's or a key's position.
bool changes(const Expr& e);
// Returns true if `e` reads a tensor at an index that has one of these variables in it.
bool reads_at(const Expr& e, Variable q, Variable k);
// Returns true if `e` reads tensors at positions of one axis alone, and is the same for all tiles of the other.
bool is_read_along_one(const Expr& e);

// Returns the number of neighbouring positions of a variable that read the same element, as the 128 of `keep[h, q /
// 128, k / 128]`, or the greatest common divisor of several such numbers; 0: there are none.
std::int64_t block_of_reads(const Expr& mask, Variable variable);

// Returns the length of runs of positions, from multiples of it on, in which `e` has the same value: 64 for `keep[h, q
// / 64, k]` and Q; 0: all positions have the same value.
std::int64_t equal_run(const Expr& e, Variable variable);

// Returns `e` with these expressions in place of the positions of a query and a key.
Expr at_positions(const Expr& e, const Expr& q, const Expr& k);

// Returns true if a mask has a part of a query alone, or of a key alone, that is worth finding once.
bool reads_along_one(const Expr& mask);

// A mask whose reads and divisions along one axis are replaced by scalars. A kernel that evaluates it for many queries
// and keys finds each of them once.
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

// A mask as two conditions that both must hold, for example document(doc) & causal: one on values read at a query and
// at a key, wherever these are, and a range along one axis that a position of the other sees.
struct ReadsAndRange {
  Expr by_reads;
  TileAnalysis range;
};
std::optional<ReadsAndRange> reads_and_range(const SeparatedMask& mask, Axis along);

}  // namespace flashjit
