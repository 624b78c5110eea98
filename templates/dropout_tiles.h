// Dropout of tiles, as mma.sync and wgmma lay 16 x 16 weights out: lane l has rows l / 4 and l / 4 + 8, and of these the
// columns 2 (l % 4), the next one, and both + 8. That is half of what a call of dropout.h is for; the other half has lane
// l ^ 4. So of two tiles each of such two lanes makes the call of one, they exchange halves, and both have what they need.
// Shared by host and device.
#pragma once

#include "templates/dropout.h"

namespace flashjit {

// What the rows of a tile are: in gradients of keys weights are kept transposed.
enum class WeightRows : unsigned char { queries, keys };

// Bytes of the eight of a and b, of b the last ones, one for each digit of the selector; a digit from 8 on takes the sign of its byte
// eight times.
inline unsigned permute_bytes(unsigned a, unsigned b, unsigned selector) {
#ifdef __CUDA_ARCH__
  unsigned result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
#else
  const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned digit = selector >> 4 * i & 15, byte = bytes >> 8 * (digit & 7) & 255;
    result |= (digit < 8 ? byte : byte >= 128 ? 255u : 0u) << 8 * i;
  }
  return result;
#endif
}

// Of two tiles a lane makes the call of the first, or of the second.
constexpr unsigned call_of_lane(unsigned lane) { return lane / 4 % 2; }

// Places of a lane's call in the counter, of tiles whose first row and column are 16 times these.
constexpr unsigned dropout_place_of_row(unsigned tile, unsigned lane) { return tile * 4 + lane / 8; }
constexpr unsigned dropout_place_of_column(unsigned tile, unsigned lane) { return tile * 4 + lane % 4; }

// What two lanes make of a call: the half of the one that made it, and that of the other. Two words each; bytes are
// those of pairs of neighbouring columns, first of one half of the tile, then of the other:
//   rows are queries: a word for rows l / 4, one for l / 4 + 8; bytes of columns, then of columns + 8
//   rows are keys:    a word for columns, one for columns + 8; bytes of rows l / 4, then of l / 4 + 8
struct CallHalves {
  unsigned own[2], other[2];
};
template <WeightRows rows>
inline CallHalves halves_of_call(const FourWords& call, unsigned lane) {
  constexpr bool kQueries = rows == WeightRows::queries;
  constexpr unsigned kFirst = kQueries ? 0x3210 : 0x6240, kStep = kQueries ? 0x4444 : 0x1111;
  const unsigned own = kFirst + call_of_lane(lane) * kStep, other = 2 * kFirst + kStep - own;
  CallHalves halves;
  for (int i = 0; i < 2; ++i) {
    halves.own[i] = permute_bytes(call.word[i], call.word[i + 2], own);
    halves.other[i] = permute_bytes(call.word[i], call.word[i + 2], other);
  }
  return halves;
}

// x / 2 + y, which is one instruction if the compiler does not look into it.
inline unsigned add_half(unsigned x, unsigned y) {
#ifdef __CUDA_ARCH__
  asm("{\n.reg .b32 half;\nshr.u32 half, %1, 1;\nadd.u32 %0, half, %2;\n}" : "=r"(x) : "r"(x), "r"(y));
  return x;
#else
  return x / 2 + y;
#endif
}

// Of four numbers at once: the highest bit of each byte says whether the weight is kept. Of an even number of dropped
// ones the last bit does not matter, and what is left has room for a sum.
template <int dropped>
inline unsigned kept_bytes(unsigned numbers) {
  constexpr unsigned kLow = 0x7f7f7f7f, kEach = 0x01010101;
  if constexpr (dropped % 2 == 0) return add_half(numbers & ~kEach, (128 - dropped / 2) * kEach);
  else if constexpr (dropped <= 128) return numbers | ((numbers & kLow) + (128 - dropped) * kEach);
  else return numbers & ((numbers & kLow) + (256 - dropped) * kEach);
}

// Which weights of two tiles a lane keeps, in the highest bits of bytes. Bytes of a word, the first two or the last two, as
// 16 bits each, ...
struct KeptTile {
  unsigned word[2];

  unsigned halves(int i, int upper) const { return permute_bytes(word[i], word[i], upper ? 0xbbaa : 0x9988); }
  // ... or one byte, as 32.
  unsigned whole(int i, int byte) const { return permute_bytes(word[i], word[i], 0x8888 + byte * 0x1111); }
};

// The tiles of two calls, of which one half is a lane's own and one the other lane's: what that one had as `other`.
template <int dropped>
inline void tiles_of_halves(KeptTile& first, KeptTile& second, const CallHalves& halves, unsigned lane) {
  const bool has_second = call_of_lane(lane) == 1;
  for (int i = 0; i < 2; ++i) {
    first.word[i] = kept_bytes<dropped>(has_second ? halves.other[i] : halves.own[i]);
    second.word[i] = kept_bytes<dropped>(has_second ? halves.own[i] : halves.other[i]);
  }
}
// Of one tile, whose call both lanes have made.
template <int dropped>
inline KeptTile tile_of_half(const CallHalves& halves) {
  return {{kept_bytes<dropped>(halves.own[0]), kept_bytes<dropped>(halves.own[1])}};
}

// The same by places: register i of a tile as an operand (rows i % 2, columns i / 2, two neighbouring columns), ...
template <WeightRows rows>
inline unsigned mask_of_operand(const KeptTile& kept, int i) {
  return rows == WeightRows::queries ? kept.halves(i % 2, i / 2) : kept.halves(i / 2, i % 2);
}
// ... and one of the two weights in it.
template <WeightRows rows>
inline unsigned mask_of_weight(const KeptTile& kept, int i, int column) {
  return rows == WeightRows::queries ? kept.whole(i % 2, i / 2 * 2 + column) : kept.whole(i / 2, i % 2 * 2 + column);
}

}  // namespace flashjit
