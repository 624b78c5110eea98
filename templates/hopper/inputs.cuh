// Tensors that a score reads at every key. A thread reads their elements ahead, for pairs of neighbouring scores.
#pragma once

#include "templates/extra_params.cuh"
#include "templates/hopper/layout.h"

namespace flashjit {

// pair_words() is the number of words that a pair has of parameter i, and word_of() is the first one.
__device__ constexpr int pair_words(int i) { return config.inputs_16 >> i & 1 ? 1 : config.inputs_32 >> i & 1 ? 2 : 0; }
__device__ constexpr int word_of(int i) { return i == 0 ? 0 : word_of(i - 1) + pair_words(i - 1); }
constexpr int kPairWords = word_of(kMaxParams);

// The parameters for one score. Elements that have been read ahead are taken from here.
struct ReadParams {
  const KernelParams& params;
  const u32* words;  // The words of the score's pair.
  int second;        // It is 1 for the second score of the pair.
  __device__ operator const KernelParams&() const { return params; }
};
template <class T, class... Index>
__device__ inline T element(const ReadParams& from, int i, Index... index) {
  if constexpr (sizeof(T) == 2) {
    if (config.inputs_16 >> i & 1) return static_cast<T>(from.words[word_of(i)] >> 16 * from.second);
  } else if constexpr (sizeof(T) == 4) {
    if (config.inputs_32 >> i & 1) return reinterpret_cast<const T&>(from.words[word_of(i) + from.second]);
  }
  return element<T>(from.params, i, index...);
}

}  // namespace flashjit
