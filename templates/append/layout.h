// Sizes of the launch that appends, and the angles that it computes. Shared by host and device.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

constexpr int kAppendThreads = 128;

// A thread writes one piece: what 16 bytes of a row of 16-bit elements become.
constexpr int kPieceColumns = 8;

// Of a token: rows of all query heads, if they are rotated, then of K, then of V.
constexpr int rotated_pieces(const KernelConfig& c) {
  return c.rope == Rope::none ? 0 : c.heads_q * (c.head_dim_qk / kPieceColumns);
}
constexpr int new_key_pieces(const KernelConfig& c) { return c.heads_kv * (c.head_dim_qk / kPieceColumns); }
constexpr int new_value_pieces(const KernelConfig& c) {
  return c.v_in_k ? 0 : c.heads_kv * (c.head_dim_v / kPieceColumns);
}
constexpr int append_pieces(const KernelConfig& c) {
  return rotated_pieces(c) + new_key_pieces(c) + new_value_pieces(c);
}

// The elements of rotated rows of Q that one token takes.
constexpr int rotated_columns(const KernelConfig& c) { return c.rope == Rope::none ? 0 : c.heads_q * c.head_dim_qk; }

// ---- angles without tables ----

// Pair i turns by base^(-2 i / dims) radians from one position to the next. Kept as a fraction of a whole turn in 64
// bits: times the position, the bits that overflow are whole turns, so nothing is lost however far it is. The fraction
// has the error of a double: after a million positions the angle is right to 1e-9.
constexpr int kMostRopePairs = 288;
struct RopeTurns {
  unsigned long long of[kMostRopePairs];
};

// The number of which the n-th power is 1 / base: by Newton's method, from above.
constexpr double inverse_root(double base, int n) {
  double root = 1;
  for (int step = 0; step < 500; ++step) {
    double power = 1;  // root^(n - 1)
    for (int i = 1; i < n; ++i) power *= root;
    const double next = root - (power * root - 1 / base) / (n * power);
    if (!(next < root)) break;
    root = next;
  }
  return root;
}

constexpr RopeTurns rope_turns(int dims, double base) {
  RopeTurns turns = {};
  const double ratio = inverse_root(base, dims / 2);
  double turn = 0.15915494309189533577;  // 1 / (2 pi)
  for (int i = 0; i < dims / 2; ++i) {
    turns.of[i] = static_cast<unsigned long long>(turn * 18446744073709551616.0);
    turn *= ratio;
  }
  return turns;
}

}  // namespace flashjit
