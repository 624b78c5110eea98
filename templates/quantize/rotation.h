// The rotation of `rotate`: every row of d columns is multiplied with a matrix before it is rounded to 8 bits, so that a
// large column is spread over all of them. Q and K get the same one, so Q K^T stays what it is. Shared by host and device.
//
//   rotated = M (signs * row) / sqrt(d)
//
// M has elements of 1 and -1 and orthogonal rows. Where d is a power of two it is Sylvester's matrix: element (i, j) is
// -1 to the number of bits that i and j have in common. Where d is 3 or 5 times one, a column is
// (d / 3) s + 4 r + e: (s, e) go by Paley's matrix of order 12 or 20, with index 4 s + e, and r by Sylvester's.
#pragma once

namespace flashjit {

// Returns 1, 3 or 5 sections of columns, each of a power of two of them, or 0 if there is no rotation of d columns.
constexpr int rotation_sections(int d) {
  // Columns must be a multiple of this, because rows of elements of 8 bits come in 16 bytes.
  constexpr int kLeast = 16;
  if (d < kLeast || d % kLeast != 0) return 0;
  int odd = d;
  while (odd % 2 == 0) odd /= 2;
  return odd <= 5 ? odd : 0;
}

// Bits of Philox4x32-10 under the key (0, 0), for the counters (0, 0, 0, 0) and (1, 0, 0, 0). Column c is negated if
// bit c / 2 % 16 (16 more for odd columns) of word c / 32 is set. The two columns of a register then have their bits 16
// apart, as the register has their signs.
constexpr unsigned kRotationSigns[8] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8,
                                        0xf8e4cca4, 0x5cb200db, 0xb1a574eb, 0x097eff67};
constexpr unsigned rotation_sign(int column) {
  return kRotationSigns[column / 32] >> (column / 2 % 16 + column % 2 * 16) & 1;
}

// Returns whether element (i, j) of Paley's matrix of this order is -1. Below the first row and beside the first
// column, it is 1 where i - j is a square modulo order - 1, and on the diagonal.
constexpr bool is_negative_in_paley(int order, int i, int j) {
  const int prime = order - 1;
  const unsigned squares = order == 12 ? 0x23a : 0x30af2;  // Bit x is set if x is a square, modulo 11 or 19.
  if (i == j || i == 0) return false;
  return j == 0 || !(squares >> (i - j + prime) % prime & 1);
}

// Returns 1 / sqrt(d), by Newton's steps, because compilers of kernels have no square root of constants.
constexpr float rotation_factor(int d) {
  double root = d;
  for (int i = 0; i < 32; ++i) root = (root + d / root) / 2;
  return static_cast<float>(1 / root);
}

}  // namespace flashjit
