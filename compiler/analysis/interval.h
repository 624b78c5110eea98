// Interval analysis: what values an expression can take when its variables lie in known ranges, and, per tile of
// queries, which keys a mask can let through. Two users: the host, with numbers (do 32 bits suffice, does an index stay
// inside its tensor), and the kernels, with expressions that are printed into the generated code.
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

// Ranges of the variables, by Variable. Beyond them it is known that q < q_len, k < k_len, q_lo <= q_hi < q_len,
// k_lo <= k_hi and hk <= h.
struct VariableRanges {
  IntInterval of[12];
};
// Lengths are cut to kMaxTokens.
VariableRanges default_ranges(std::int64_t max_batch, std::int64_t heads_q, std::int64_t heads_kv,
                              std::int64_t max_q_len, std::int64_t max_k_len);

// The interval of an int expression; nothing for one that depends on tensor data or scalars. Error when the value can
// leave int64.
Result<std::optional<IntInterval>> interval_of(const Expr& expr, const VariableRanges& ranges);

// True when every int node of `expr` provably fits 32 bits under `ranges`. Loads of 64-bit tensors do not, except right
// under bit(), which takes 64 bits in any case.
bool fits_32_bits(const Expr& expr, const VariableRanges& ranges);

// Checks what must hold before code is generated: divisors provably positive, shift amounts of bit() in 0..63 provable,
// no value can leave int64.
Result<void> check_ranges(const Expr& expr, const VariableRanges& ranges);

// For every Load: the interval of each index, so that the caller can compare it with the shape of the tensor it got.
struct IndexRange {
  Param param;
  int dimension = 0;
  IntInterval range;
};
Result<std::vector<IndexRange>> index_ranges(const Expr& expr, const VariableRanges& ranges);

// What a mask lets through for the queries q_lo..q_hi (inclusive), as expressions over
// q_lo q_hi b h hk q_len k_len, scalars and loads that do not depend on q or k.
struct TileAnalysis {
  Expr kv_begin, kv_end;      // every visible key of every row lies in [kv_begin, kv_end); clipped to [0, k_len]
  Expr full_begin, full_end;  // every key in [full_begin, full_end) is visible to every row; empty when begin >= end
  Expr may_see;               // over k_lo and k_hi as well: false only if no row sees any key of the KV tile.
                              // Empty Expr when the range [kv_begin, kv_end) has no holes worth testing.
  bool row_is_range = false;  // for a single row both ranges are the same: it sees all keys of it and no others
};
TileAnalysis analyse_tiles(const Expr& mask);  // an empty mask: everything visible

// The same, evaluated: what one KV tile is for one query tile. For tests, the cost model and explain.
enum class TileClass { Empty, Mixed, Full };
TileClass classify(const TileAnalysis& analysis, Environment environment, std::int64_t q_lo, std::int64_t q_hi,
                   std::int64_t k_lo, std::int64_t k_hi);

}  // namespace flashjit
