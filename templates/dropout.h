// Which weights dropout drops: a function of seed, offset, batch index, head, query and key alone, so that forward,
// backward, the host and every tiling drop the same ones. Nobody calls this yet: `dropout=` of a spec is to, in the
// kernels of all families. Shared by host and device; no includes.
//
// A call of Philox4x32-10 gives 128 bits for 16 weights, those of 2 queries and 8 keys that one thread holds where its
// warp multiplies tiles of 16 queries by 32 keys: lane 4 (q % 8) + k / 2 % 4, as mma.sync and wgmma lay sums out.
//   key      two words of Philox of (offset, 0) under the seed
//   counter  k / 32 * 4 + k / 2 % 4, q / 16 * 8 + q % 8, h, b
//   number   word k / 16 % 2 * 2 + k % 2, rotated to the left by 8 (k / 8 % 2 * 2 + q / 8 % 2) bits
// A word has what a thread needs that holds queries q, q + 8 and keys k, k + 8, which is what transposed tiles give it.
// A weight is dropped where its number, as a whole, is below p 2^32. So p is exact to 2^-33. The four numbers of a word
// are rotations of one another: whether one is dropped says of the next one less than 1/256 of what it could, since only
// equal first bytes look at the byte that the next one begins with.
#pragma once

namespace flashjit {

struct PhiloxKey {
  unsigned low, high;
};
struct PhiloxWords {
  unsigned word[4];
};

struct WideProduct {
  unsigned high, low;
};
inline WideProduct wide_product(unsigned a, unsigned b) {
#ifdef __CUDA_ARCH__
  // One instruction. Of an integer of 64 bits the compiler would not see in time that its upper half is zero.
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

// Not a loop: unrolled, its keys are constants apart from those of a call.
template <int rounds = 10>
inline PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
  if constexpr (rounds == 0) {
    return counter;
  } else {
    const WideProduct a = wide_product(0xD2511F53u, counter.word[0]), b = wide_product(0xCD9E8D57u, counter.word[2]);
    return philox<rounds - 1>({{b.high ^ counter.word[1] ^ key.low, b.low, a.high ^ counter.word[3] ^ key.high, a.low}},
                              {key.low + 0x9E3779B9u, key.high + 0xBB67AE85u});
  }
}

// Of a call. Other offsets give other masks for the same seed, also where they are neighbours.
inline PhiloxKey dropout_key(unsigned long long seed, unsigned long long offset) {
  const PhiloxWords mixed = philox({{static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32), 0, 0}},
                                   {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)});
  return {mixed.word[0], mixed.word[1]};
}

// The numbers of queries q, q ^ 8 and of the eight keys that agree with k in k / 32 and k / 2 % 4.
inline PhiloxWords dropout_words(PhiloxKey key, unsigned b, unsigned h, unsigned q, unsigned k) {
  return philox({{k / 32 * 4 + k / 2 % 4, q / 16 * 8 + q % 8, h, b}}, key);
}
// Of q they see q / 8 % 2, of k k % 2 and k / 8 % 4: where a thread's weights are registers, these are constants.
constexpr unsigned dropout_word(unsigned k) { return k / 16 % 2 * 2 + k % 2; }
constexpr unsigned dropout_turn(unsigned q, unsigned k) { return 8 * (k / 8 % 2 * 2 + q / 8 % 2); }
inline unsigned dropout_number(const PhiloxWords& words, unsigned q, unsigned k) {
  const unsigned word = words.word[dropout_word(k)], turn = dropout_turn(q, k);
  return word << turn | word >> (-turn & 31);
}

// p from 0 to below 1. Weights that are kept are multiplied by 1 / (1 - p).
constexpr unsigned dropout_limit(double p) {
  const double limit = p * 4294967296.0 + 0.5;
  return limit >= 4294967295.0 ? 4294967295u : static_cast<unsigned>(limit);
}
constexpr bool is_dropped(unsigned number, unsigned limit) { return number < limit; }

}  // namespace flashjit
