// Interval analysis finds the values that an expression can take when its variables lie in known ranges, and the keys
// that a mask can let through for a tile of queries, or the queries for a tile of keys. The host uses it with numbers
// (do 32 bits suffice, does an index stay inside its tensor), and the kernels with expressions that are printed into
// the generated code.
#pragma once

#include <optional>
#include <span>

#include "compiler/language/expr.h"

namespace flashjit {

// A closed interval of ints. It saturates at the ends of int64, which then mean "unbounded".
struct IntInterval {
  std::int64_t lo = 0, hi = 0;
  bool operator==(const IntInterval&) const = default;
};

// No sequence is longer. With this limit `q + k_len - q_len` and similar sums provably fit 32 bits. Code that takes
// lengths from a caller must refuse longer ones.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;

// The two sides of a mask, and the language's variables for positions on each.
enum class Axis { Queries, Keys };
struct AxisVariables {
  Variable position, lo, hi, length;
};
constexpr Axis other(Axis axis) { return axis == Axis::Keys ? Axis::Queries : Axis::Keys; }
constexpr AxisVariables variables_of(Axis axis) {
  return axis == Axis::Keys ? AxisVariables{Variable::K, Variable::KLo, Variable::KHi, Variable::KLen}
                            : AxisVariables{Variable::Q, Variable::QLo, Variable::QHi, Variable::QLen};
}

// Ranges of the variables, indexed by Variable. It is also known that q < q_len, k < k_len, q_lo <= q_hi, k_lo <= k_hi
// and hk <= h. A tile across the loop ends before the length of its axis. The last of the tiles that a loop visits may
// reach beyond.
struct VariableRanges {
  IntInterval of[12];
  Axis along = Axis::Keys;  // The axis whose tiles a loop visits.
};
// Lengths are cut to kMaxTokens.
VariableRanges default_ranges(std::int64_t max_batch, std::int64_t heads_q, std::int64_t heads_kv,
                              std::int64_t max_q_len, std::int64_t max_k_len, Axis along = Axis::Keys);

// Returns the values that an int of this dtype can have.
IntInterval range_of(Dtype dtype);

// Returns an empty Expr if every int node of `expr` provably fits 32 bits under `ranges`, otherwise a node that does
// not fit although its arguments do. Loads of 64-bit tensors do not fit, except right under bit() and as indices, which
// take 64 bits in any case.
Expr wide_subexpression(const Expr& expr, const VariableRanges& ranges);

// Checks the conditions for code generation: divisors are provably positive, bit numbers of bit() are provably in
// 0..63, and no value can leave int64.
Result<void> check_ranges(const Expr& expr, const VariableRanges& ranges);

// The part of one axis that a mask leaves for a tile of the other: along Keys, the keys that the queries q_lo..q_hi
// (inclusive) see; along Queries, the queries that see the keys k_lo..k_hi. The expressions are over the ends of that
// tile, b h hk q_len k_len, scalars, and loads that do not depend on q or k. The last tile across is cut at the length,
// so its end lies inside; in may_see, tiles along the axis may reach beyond. A pair is a position of the range and one
// of the tile.
struct TileAnalysis {
  Axis along = Axis::Keys;
  Expr begin, end;  // Every visible pair lies in [begin, end), which is clipped to 0 and the length of the axis.
  Expr full_begin, full_end;  // Every pair in [full_begin, full_end) is visible; the range is empty if begin >= end.
  // It is over both tiles, q_lo q_hi k_lo k_hi, and false only if no pair of the two is visible. An empty Expr means
  // that the range [begin, end) has no holes worth a test.
  Expr may_see;
  // It is may_see with reads of tensors that the mask reads once for a block of positions, for kernels without lists of
  // tiles. An empty Expr means that the mask has no such reads.
  Expr may_see_in_blocks;
  // For a tile of one position both ranges are equal, so the visible positions are those of the range and no others.
  bool line_is_range = false;
};
// may_see_in_blocks is exact for tiles of these sizes. For others, and for tiles that begin elsewhere, it may be true
// too often.
struct TileSizes {
  int q = 1, kv = 1;
};
// An empty mask leaves everything visible.
TileAnalysis analyse_tiles(const Expr& mask, Axis along = Axis::Keys, const TileSizes& sizes = {});

// Classifies a tile of the range for a tile of the other axis, by evaluating the analysis. Tests and explain use it.
enum class TileClass { Empty, Mixed, Full };
TileClass classify(const TileAnalysis& analysis, Environment environment, std::int64_t q_lo, std::int64_t q_hi,
                   std::int64_t k_lo, std::int64_t k_hi);

}  // namespace flashjit
