#include "compiler/spec/fields/rope.h"

#include <string>

#include <fmt/format.h>

namespace flashjit {

namespace {

constexpr double kMaxRopeBase = 1e12;

// Refuses a first column in the middle of a piece, because kernels read rows in pieces.
Result<void> check_turning_columns(const AttentionSpec& spec) {
  constexpr int kPiece = 8;
  const int last = spec.d_qk - spec.rope_dims;
  if (spec.rope_from >= 0 && spec.rope_from % kPiece == 0 && spec.rope_from <= last) return {};
  return invalid(
      fmt::format("rope_from: {}, and the first of {} columns that rotate is a multiple of {} from 0 to {}; "
                  "Q and K have {} columns",
                  spec.rope_from, spec.rope_dims, kPiece, last / kPiece * kPiece, spec.d_qk));
}

}  // namespace

Result<void> check_rope(const AttentionSpec& spec) {
  if (spec.rope == Rope::none) {
    if (spec.rope_base == 0 && spec.rope_from == 0) return {};
    const std::string given = spec.rope_base != 0 ? fmt::format("rope_base: {}", spec.rope_base)
                                                  : fmt::format("rope_from: {}", spec.rope_from);
    return invalid(fmt::format("{}, and nothing rotates; add rope=half({}) or leave it out", given, spec.d_qk));
  }
  if (spec.rope_dims < 2 || spec.rope_dims % 2 != 0 || spec.rope_dims > spec.d_qk) {
    return invalid(fmt::format("rope: {} columns cannot rotate; use an even number from 2 to {}, the head dim of Q",
                               spec.rope_dims, spec.d_qk));
  }
  FLASHJIT_TRY(check_turning_columns(spec));
  if (spec.rope_base != 0 && !(spec.rope_base >= 1 && spec.rope_base <= kMaxRopeBase)) {
    return invalid(fmt::format("rope_base: {} is outside 1..{}; other frequencies come from tables, cos and sin",
                               spec.rope_base, kMaxRopeBase));
  }
  if (spec.append || narrows(spec) || quantizes(spec)) return {};
  return invalid(
      "rope: it rotates Q and new keys, and there are none without append; add append, or compute=e4m3, which rotates "
      "all of Q and K, or rotate Q before the call");
}

}  // namespace flashjit
