// Score functions and masks of a query and a key, for keys behind the last one as well, and for masks that are too long
// to be evaluated for all scores of a thread at once. Loops of warpgroups and of sync do not call logit() or
// is_hidden() where ptxas makes another kernel of the call: a condition that a function returns becomes a value first,
// and not a branch.
#pragma once

#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

// Returns the score of a scaled product. With `clamps`, a key behind the last one is replaced by the last one, because
// a tensor that the score function reads may end there.
template <bool clamps = true, class Key>
__device__ inline float logit(const KernelParams& params, const Sequence& seq, float x, int q, const Key& k) {
  if constexpr (!config.has_score) return x;
  else if constexpr (!clamps) return Variant::score(FullRange(), params, seq, x, q, k);
  else return Variant::score(FullRange(), params, seq, x, q, min(static_cast<int>(k), seq.k_len - 1));
}

// Returns whether the key is hidden from the query, or does not exist.
template <class Key>
__device__ inline bool is_hidden(const KernelParams& params, const Sequence& seq, int q, const Key& k) {
  return k >= seq.k_len || (config.has_mask && !Variant::visible(params, seq, q, k));
}

// A long mask would be most of the kernel, take seconds to compile, and not fit into the caches of instructions. So a
// loop evaluates it, and sets a bit for each key.
constexpr int kWordKeys = 128;  // A thread has 32 of these keys: two of every eight.

// Returns one bit for each of this thread's keys: whether query q sees it. The keys begin with `first`, and their tile
// has `keys` keys.
__device__ inline u32 evaluate_mask(const KernelParams& params, const Sequence& seq, int q, int first, int keys) {
  u32 bits = 0;
#pragma unroll 2
  for (int i = 0; i < min(keys, kWordKeys) / 4; ++i) {
    const int k = first + i / 2 * 8 + i % 2;
    // A tensor that the mask reads may end behind the last key.
    const bool seen = Variant::visible(params, seq, q, min(k, seq.k_len - 1));
    bits |= static_cast<u32>(seen && k < seq.k_len) << i;
  }
  return bits;
}

}  // namespace flashjit
