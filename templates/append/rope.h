// The angles by which `rope` turns rows: how they are computed, and how tables of them are read. Host and device share
// this file.
#pragma once

namespace flashjit {

// Pair i turns by base^(-2 i / dims) radians from one position to the next. The angle is kept as a fraction of a whole turn
// in 64 bits. When it is multiplied by the position, the bits that overflow are whole turns, so nothing is lost however far
// the position is. The fraction has the error of a double: after a million positions the angle is right to 1e-9.
constexpr int kMostRopePairs = 288;
struct RopeTurns {
  unsigned long long of[kMostRopePairs];
};

// Finds the number whose n-th power is 1 / base by Newton's method, from above.
constexpr double inverse_root(double base, int n) {
  double root = 1;
  for (int step = 0; step < 500; ++step) {
    double power = 1;  // It becomes root^(n - 1).
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
  double turn = 0.15915494309189533577;  // It begins with 1 / (2 pi).
  for (int i = 0; i < dims / 2; ++i) {
    turns.of[i] = static_cast<unsigned long long>(turn * 18446744073709551616.0);
    turn *= ratio;
  }
  return turns;
}

// Returns how many bytes of a row of a table a wide access can take where tensors are aligned to `aligned` bytes. Such a row
// has a column for each pair.
constexpr int rope_table_bytes(int dims, int aligned) {
  const int of_rows = dims % 8 == 0 ? 16 : dims % 4 == 0 ? 8 : 4;
  return aligned < 4 ? 4 : aligned < of_rows ? aligned : of_rows;
}

}  // namespace flashjit
