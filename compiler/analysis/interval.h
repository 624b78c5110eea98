// Interval analysis: what values an expression can take when its variables lie in known ranges, and which keys a mask
// can let through for a tile of queries, or which queries for a tile of keys. Two users: the host, with numbers (do 32
// bits suffice, does an index stay inside its tensor), and the kernels, with expressions that are printed into the
// generated code.
#pragma once

#include <optional>
#include <span>

#include "compiler/language/expr.h"

namespace flashjit {

// Closed interval of ints; saturates at the ends of int64, which then mean "unbounded" and set `overflow`.
struct IntInterval {
  std::int64_t lo = 0, hi = 0;
  bool operator==(const IntInterval&) const = default;
};

// No sequence is longer: with this, `q + k_len - q_len` and its like provably fit 32 bits. Who takes lengths from a
// caller has to refuse longer ones.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;

// The two sides of a mask, and what the language calls the positions on each.
enum class Axis { Queries, Keys };
struct AxisVariables {
  Variable position, lo, hi, length;
};
constexpr Axis other(Axis axis) { return axis == Axis::Keys ? Axis::Queries : Axis::Keys; }
constexpr AxisVariables variables_of(Axis axis) {
  return axis == Axis::Keys ? AxisVariables{Variable::K, Variable::KLo, Variable::KHi, Variable::KLen}
                            : AxisVariables{Variable::Q, Variable::QLo, Variable::QHi, Variable::QLen};
}

// Ranges of the variables, by Variable. Beyond them it is known that q < q_len, k < k_len, q_lo <= q_hi, k_lo <= k_hi,
// hk <= h, and that a tile ends before the length of its axis: but for the tiles that a loop visits, the last of which
// may reach beyond.
struct VariableRanges {
  IntInterval of[12];
  Axis along = Axis::Keys;  // which tiles a loop visits
};
// Lengths are cut to kMaxTokens.
VariableRanges default_ranges(std::int64_t max_batch, std::int64_t heads_q, std::int64_t heads_kv,
                              std::int64_t max_q_len, std::int64_t max_k_len, Axis along = Axis::Keys);

// The values that an int of this dtype can have.
IntInterval range_of(Dtype dtype);

// Empty when every int node of `expr` provably fits 32 bits under `ranges`. Otherwise one that does not, though all its
// arguments do. Loads of 64-bit tensors do not, except right under bit() and as indices, which take 64 bits in any case.
Expr wide_subexpression(const Expr& expr, const VariableRanges& ranges);

// Checks what must hold before code is generated: divisors provably positive, shift amounts of bit() in 0..63 provable,
// no value can leave int64.
Result<void> check_ranges(const Expr& expr, const VariableRanges& ranges);

// The part of one axis that a mask leaves for a tile of the other: along Keys, which keys the queries q_lo..q_hi (inclusive)
// see; along Queries, which queries see the keys k_lo..k_hi. As expressions over the ends of that tile, b h hk q_len
// k_len, scalars and loads that do not depend on q or k. The last of these tiles is cut at the length, so its end lies
// inside; in may_see, tiles along the axis may reach beyond. A pair is a position of the range and one of the tile.
struct TileAnalysis {
  Axis along = Axis::Keys;
  Expr begin, end;            // every visible pair lies in [begin, end); clipped to 0 and the length of the axis
  Expr full_begin, full_end;  // every pair in [full_begin, full_end) is visible; empty when begin >= end
  Expr may_see;               // over both tiles, q_lo q_hi k_lo k_hi: false only if no pair of the two is visible.
                              // Empty Expr when the range [begin, end) has no holes worth testing.
  Expr may_see_in_blocks;  // the same, which also reads what the mask reads once for a block of positions, for who has
                           // no lists of tiles. Empty Expr when it reads nothing so.
  bool line_is_range = false;  // for a tile of one position both ranges are the same: it is visible there, nowhere else
};
// Tiles for which may_see_in_blocks is exact; of others, and of those that begin elsewhere, it may be true too often.
struct TileSizes {
  int q = 1, kv = 1;
};
// An empty mask: everything visible.
TileAnalysis analyse_tiles(const Expr& mask, Axis along = Axis::Keys, const TileSizes& sizes = {});

// The same, evaluated: what a tile of the range is for a tile of the other axis. For tests, the cost model and explain.
enum class TileClass { Empty, Mixed, Full };
TileClass classify(const TileAnalysis& analysis, Environment environment, std::int64_t q_lo, std::int64_t q_hi,
                   std::int64_t k_lo, std::int64_t k_hi);

}  // namespace flashjit
