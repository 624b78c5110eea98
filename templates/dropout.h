// Decides which weights dropout drops. The decision depends on seed, offset, batch index, head, query and key alone, so
// that forward, backward, the host and every tiling drop the same weights. Host and device share this file.
//
// A call of the generator gives 16 numbers of 8 bits: for queries i and i + 8 of 16, and for keys 2 j + {0, 1, 8, 9} in
// each half of 32. Where mma.sync and wgmma lay sums out, with rows that are queries, a lane has all 16 numbers of a
// call.
// each half of 32. Where mma.sync and wgmma lay sums out, with rows that are queries, a lane has all 16 of a call.
//   key      the words of Philox4x32-10 of (offset, 0) under the seed
//   counter  h, k / 32 * 4 + k / 2 % 4, b, q / 16 * 8 + q % 8
//   words    of pcg4d (Jarzynski, Olano: Hash Functions for GPU Rendering, 2020), with the key in place of its constant, and
//            halves of words exchanged where it adds the upper one to the lower: one instruction for two
//   word     k / 16 % 2 * 2 + q / 8 % 2
//   half     k % 2, the lower one first; its bytes exchanged where k / 8 % 2 is 1
//   number   bits 7 to 14 of that: as floats of 16 bits without their sign, halves are in the order of these
// A weight is dropped if its number is below the number of dropped weights of 256. Philox does not draw all numbers,
// because the upper half of a product of integers takes several times as long as the lower one [M68].
#pragma once

#include "templates/kernel_params.h"

namespace flashjit {

struct FourWords {
  unsigned word[4];
};
struct PhiloxKey {
  unsigned low, high;
};

struct WideProduct {
  unsigned high, low;
};
inline WideProduct wide_product(unsigned a, unsigned b) {
#ifdef __CUDA_ARCH__
  // This is one instruction. The compiler would not see in time that the upper half of an operand of 64 bits is zero.
  WideProduct product;
  asm("{\n.reg .b64 p;\nmul.wide.u32 p, %2, %3;\nmov.b64 {%1, %0}, p;\n}"
      : "=r"(product.high), "=r"(product.low)
      : "r"(a), "r"(b));
  return product;
#else
  const unsigned long long product = static_cast<unsigned long long>(a) * b;
  return {static_cast<unsigned>(product >> 32), static_cast<unsigned>(product)};
#endif
}

// Constants of a round: the factors of its two words, and the numbers that are added to the key after it.
constexpr unsigned kPhiloxFactor[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr unsigned kPhiloxStep[2] = {0x9E3779B9u, 0xBB67AE85u};

// The rounds are no loop: unrolled, the keys are constants apart from those of a call.
template <int rounds>
inline FourWords philox(FourWords counter, PhiloxKey key) {
  if constexpr (rounds == 0) {
    return counter;
  } else {
    const WideProduct a = wide_product(kPhiloxFactor[0], counter.word[0]),
                      b = wide_product(kPhiloxFactor[1], counter.word[2]);
    return philox<rounds - 1>({{b.high ^ counter.word[1] ^ key.low, b.low, a.high ^ counter.word[3] ^ key.high, a.low}},
                              {key.low + kPhiloxStep[0], key.high + kPhiloxStep[1]});
  }
}

// Returns the key of a launch. Different offsets give different masks for the same seed, even where they are
// neighbours.
inline FourWords dropout_key(unsigned long long seed, unsigned long long offset) {
  return philox<10>({{static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32), 0, 0}},
                    {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)});
}
// Each word of the counter is made unlike its neighbours, and then products of other words are added to each, twice.
constexpr unsigned kCounterFactor = 1664525;

// Rows whose calls begin in the middle of a sequence begin at a multiple of this number, because a call has numbers of
// 32 keys and 16 queries.
constexpr int kDropoutBlock = 32;
// Returns the key of a call. With `placed`, its rows may begin at other positions than 0. These positions belong to the
// counter. They are added to the key instead, times the factor by which the counter is multiplied, so that kernels
// count from 0.
template <bool placed>
inline FourWords dropout_key(const KernelParams& params) {
  FourWords key = dropout_key(static_cast<unsigned long long>(params.seed_at ? *params.seed_at : params.seed),
                              static_cast<unsigned long long>(params.offset_at ? *params.offset_at : params.offset));
  if (placed) {
    key.word[1] += static_cast<unsigned>(params.k_places.begin) / 32 * 4 * kCounterFactor;
    key.word[3] += static_cast<unsigned>(params.q_places.begin) / 16 * 8 * kCounterFactor;
  }
  return key;
}

inline void add_products(FourWords& x) {
  x.word[0] += x.word[1] * x.word[3];
  x.word[1] += x.word[2] * x.word[0];
  x.word[2] += x.word[0] * x.word[1];
  x.word[3] += x.word[1] * x.word[2];
}
inline FourWords dropout_call(const FourWords& key, unsigned b, unsigned h, unsigned row, unsigned column) {
  FourWords x = {{h * kCounterFactor + key.word[0], column * kCounterFactor + key.word[1],
                  b * kCounterFactor + key.word[2], row * kCounterFactor + key.word[3]}};
  add_products(x);
  for (unsigned& word : x.word) word = word << 16 | word >> 16;
  add_products(x);
  return x;
}

// These return the call of a weight, and the weight's place in it.
constexpr unsigned dropout_column(unsigned k) { return k / 32 * 4 + k / 2 % 4; }
constexpr unsigned dropout_row(unsigned q) { return q / 16 * 8 + q % 8; }
constexpr unsigned dropout_word(unsigned q, unsigned k) { return k / 16 % 2 * 2 + q / 8 % 2; }
constexpr unsigned dropout_half(unsigned k) { return k % 2; }
constexpr bool exchanges_bytes(unsigned k) { return k / 8 % 2 == 1; }
inline FourWords dropout_words(const FourWords& key, unsigned b, unsigned h, unsigned q, unsigned k) {
  return dropout_call(key, b, h, dropout_row(q), dropout_column(k));
}
// Returns the number that a half of a word holds.
constexpr unsigned number_of_half(unsigned half, bool exchanged) {
  return (exchanged ? half << 1 | half >> 15 : half >> 7) & 255;
}
inline unsigned dropout_number(const FourWords& words, unsigned q, unsigned k) {
  return number_of_half(words.word[dropout_word(q, k)] >> 16 * dropout_half(k) & 0xffff, exchanges_bytes(k));
}

// Returns KernelConfig::dropped for a probability: the nearest number of 256. 0 drops nothing, and 256 would leave
// nothing.
constexpr int kDropoutNumbers = 256;
constexpr int dropped_of(double p) { return static_cast<int>(p * kDropoutNumbers + 0.5); }
inline bool is_dropped(unsigned number, int dropped) { return number < static_cast<unsigned>(dropped); }
// Returns the factor by which kept weights are multiplied.
constexpr float dropout_factor(int dropped) {
  return static_cast<float>(kDropoutNumbers) / static_cast<float>(kDropoutNumbers - dropped);
}

}  // namespace flashjit
