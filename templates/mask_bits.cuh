// Masks that are too long to be evaluated for all scores of a thread at once: that would be most of the kernel, take
// seconds to compile, and not fit into the caches of instructions.
#pragma once

#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr int kWordKeys = 128;  // of which a thread has 32: two of every eight

// Which of this thread's keys query q sees, one bit for each, from its key `first` on, of a tile that has `keys` more.
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
