// Score functions and masks of a query and a key: how keys behind the last are taken, and masks that are too long to be
// evaluated for all scores of a thread at once. Loops of warpgroups and of sync write logit() or is_hidden() out where ptxas
// makes another kernel of the call: a condition that a function returns is a value first, and not a branch.
#pragma once

#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

// Returns the score of a scaled product. `clamps`: a key behind the last is taken for the last, as a tensor
// that the score function reads may end there.
template <bool clamps = true, class Key>
__device__ inline float logit(const KernelParams& params, const Sequence& seq, float x, int q, const Key& k) {
  if constexpr (!config.has_score) return x;
  else if constexpr (!clamps) return Variant::score(FullRange(), params, seq, x, q, k);
  else return Variant::score(FullRange(), params, seq, x, q, min(static_cast<int>(k), seq.k_len - 1));
}

// Is the key hidden from the query, or is there no such key?
template <class Key>
__device__ inline bool is_hidden(const KernelParams& params, const Sequence& seq, int q, const Key& k) {
  return k >= seq.k_len || (config.has_mask && !Variant::visible(params, seq, q, k));
}

// A long mask would be most of the kernel, take seconds to compile, and not fit into the caches of instructions. It is
// evaluated in a loop, and a bit for each key says what came of it.
constexpr int kWordKeys = 128;  // of which a thread has 32: two of every eight

// Says which of this thread's keys query q sees, one bit for each, from its key `first` on, of a tile that has `keys` more.
__device__ inline u32 evaluate_mask(const KernelParams& params, const Sequence& seq, int q, int first, int keys) {
  u32 bits = 0;
#pragma unroll 2
  for (int i = 0; i < min(keys, kWordKeys) / 4; ++i) {
    const int k = first + i / 2 * 8 + i % 2;
    // Behind the last key a tensor that the mask reads may end.
    const bool seen = Variant::visible(params, seq, q, min(k, seq.k_len - 1));
    bits |= static_cast<u32>(seen && k < seq.k_len) << i;
  }
  return bits;
}

}  // namespace flashjit
