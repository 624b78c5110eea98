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

constexpr PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = 0xD2511F53ull * counter.word[0], b = 0xCD9E8D57ull * counter.word[2];
    counter = {{static_cast<unsigned>(b >> 32) ^ counter.word[1] ^ key.low, static_cast<unsigned>(b),
                static_cast<unsigned>(a >> 32) ^ counter.word[3] ^ key.high, static_cast<unsigned>(a)}};
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

// Of a call. Other offsets give other masks for the same seed, also where they are neighbours.
constexpr PhiloxKey dropout_key(unsigned long long seed, unsigned long long offset) {
  const PhiloxWords mixed = philox({{static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32), 0, 0}},
                                   {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)});
  return {mixed.word[0], mixed.word[1]};
}

// The numbers of queries q, q ^ 8 and of the eight keys that agree with k in k / 32 and k / 2 % 4.
constexpr PhiloxWords dropout_words(PhiloxKey key, int b, int h, int q, int k) {
  return philox({{static_cast<unsigned>(k / 32 * 4 + k / 2 % 4), static_cast<unsigned>(q / 16 * 8 + q % 8),
                  static_cast<unsigned>(h), static_cast<unsigned>(b)}},
                key);
}
constexpr int dropout_word(int k) { return k / 16 % 2 * 2 + k % 2; }
constexpr int dropout_turn(int q, int k) { return 8 * (k / 8 % 2 * 2 + q / 8 % 2); }
constexpr unsigned dropout_number(const PhiloxWords& words, int q, int k) {
  const unsigned word = words.word[dropout_word(k)];
  const int turn = dropout_turn(q, k);
  return word << turn | word >> (-turn & 31);
}

// p from 0 to below 1. Weights that are kept are multiplied by 1 / (1 - p).
constexpr unsigned dropout_limit(double p) {
  const double limit = p * 4294967296.0 + 0.5;
  return limit >= 4294967295.0 ? 4294967295u : static_cast<unsigned>(limit);
}
constexpr bool is_dropped(unsigned number, unsigned limit) { return number < limit; }

}  // namespace flashjit
