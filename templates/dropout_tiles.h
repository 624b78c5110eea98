// Dropout of tiles, in the layout that mma.sync and wgmma have for 16 x 16 weights: lane l has rows l / 4 and l / 4 +
// 8, and of these the columns 2 (l % 4), the next one, and both + 8. If rows are queries, a lane has two words of a
// call of dropout.h there, and the other two in the next tile of keys. If rows are keys, it has half of two calls, and
// lane l ^ 4 has the other halves: each lane makes one of the two calls, and they exchange halves. Host and device
// share this file.
#pragma once

#include "templates/dropout.h"

namespace flashjit {

// The rows of a tile are queries or keys: gradients of keys keep weights transposed.
enum class WeightRows : unsigned char { queries, keys };

// Returns one of the eight bytes of a and b for each digit of the selector; the last four bytes are those of b.
inline unsigned permute_bytes(unsigned a, unsigned b, unsigned selector) {
#ifdef __CUDA_ARCH__
  unsigned result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
#else
  const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
#endif
}

// Makes the numbers of two weights, in the halves of a word, comparable with kDroppedBelow as two numbers of fp16
// without their signs. NaN counts as large. (kDroppedBelow for 248 is infinite; from 249 on the numbers stand by
// themselves.)
template <int dropped>
inline unsigned comparable(unsigned numbers) {
  return dropped > 248 ? numbers >> 7 & 0x00ff00ff : numbers;
}
template <int dropped>
constexpr unsigned kDroppedBelow = (dropped > 248 ? dropped : dropped << 7) * 0x10001u;
// Returns 16 bits for each weight: all are set if the weight is kept, else none.
template <int dropped>
inline unsigned kept_halves(unsigned numbers) {
#ifdef __CUDA_ARCH__
  unsigned result;
  asm("{\n.reg .b32 positive;\nabs.f16x2 positive, %1;\nset.geu.u32.f16x2 %0, positive, %2;\n}"
      : "=r"(result)
      : "r"(comparable<dropped>(numbers)), "r"(kDroppedBelow<dropped>));
  return result;
#else
  const auto kept = [](unsigned half) { return number_of_half(half, false) >= dropped ? 0xffffu : 0u; };
  return kept(numbers >> 16) << 16 | kept(numbers & 0xffff);
#endif
}

// The random numbers of a lane's eight weights of a tile. One word belongs to one row (rows are queries) or to two
// neighbouring columns (rows are keys), and the other word to what is 8 further on. A half belongs to a column and,
// with its bytes exchanged, to the column (rows are queries) or row 8 further on.
struct TileNumbers {
  unsigned word[2];
};

// Returns the numbers of register i of a tile as an operand: rows i % 2, columns i / 2, two neighbouring columns.
template <WeightRows rows>
inline unsigned numbers_of_operand(const TileNumbers& numbers, int i) {
  constexpr bool kQueries = rows == WeightRows::queries;
  const unsigned word = numbers.word[kQueries ? i % 2 : i / 2];
  return (kQueries ? i / 2 : i % 2) ? permute_bytes(word, word, 0x2301) : word;
}
template <WeightRows rows, int dropped>
inline unsigned mask_of_operand(const TileNumbers& numbers, int i) {
  return kept_halves<dropped>(numbers_of_operand<rows>(numbers, i));
}
// Returns the mask of one of the register's two weights, with 32 bits.
template <WeightRows rows, int dropped>
inline unsigned mask_of_weight(const TileNumbers& numbers, int i, int column) {
  const unsigned mask = mask_of_operand<rows, dropped>(numbers, i);
  return permute_bytes(mask, mask, column ? 0x3232 : 0x1010);
}

// Return the words of the counter of a lane's call, for a tile of queries and a tile of keys. Tiles begin at 16 times
// their number.
template <WeightRows rows>
constexpr unsigned dropout_counter_of_query(unsigned tile, unsigned lane) {
  return tile * 8 + (rows == WeightRows::queries ? lane / 4 : lane % 4 * 2 + lane / 4 % 2);
}
template <WeightRows rows>
constexpr unsigned dropout_counter_of_key(unsigned tile, unsigned lane) {
  return tile / 2 * 4 + (rows == WeightRows::queries ? lane % 4 : lane / 8);
}

// Two words of a call belong to a tile of keys, and the other two to the next tile.
inline TileNumbers numbers_of_call(const FourWords& call, unsigned key_tile) {
  const bool second = key_tile % 2 == 1;
  return {{second ? call.word[2] : call.word[0], second ? call.word[3] : call.word[1]}};
}

// If rows are keys, a lane keeps one half of its call, and lane ^ 4 gets the other one. The halves of a word belong to
// a query and to the one 8 further on.
struct CallHalves {
  unsigned own, other;
};
inline CallHalves halves_of_call(const TileNumbers& call, unsigned lane) {
  const unsigned own = 0x5410 + lane / 4 % 2 * 0x2222;
  return {permute_bytes(call.word[0], call.word[1], own), permute_bytes(call.word[0], call.word[1], own ^ 0x2222)};
}
// The two lanes have exchanged `halves.other`, so it is the other lane's here.
inline TileNumbers numbers_of_halves(const CallHalves& halves, unsigned lane) {
  const unsigned swap = lane / 4 % 2 * 0x4444;
  return {
      {permute_bytes(halves.own, halves.other, 0x5410 ^ swap), permute_bytes(halves.own, halves.other, 0x7632 ^ swap)}};
}

}  // namespace flashjit
