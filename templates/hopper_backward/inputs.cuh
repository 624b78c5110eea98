// Loads elements that a score reads at every query and key of a step from shared memory to registers. The producer
// copies them to shared memory. Where TMA cannot address one of the tensors, each warp copies the part that it reads.
#pragma once

#include "templates/hopper/inputs.cuh"
#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// The words of all inputs, for each pair of neighbouring queries that a thread has.
struct InputWords {
  u32 of[kHasInputs ? kTileQ / 4 * kPairWords : 1];
  // Returns the parameters for score i.
  __device__ ReadParams params(const KernelParams& params, int i) const {
    return {params, of + i / 2 * kPairWords, i % 2};
  }
};

// Reads elements of 16 bits: a matrix of eight queries and keys, transposed, gives each lane a pair of queries of a
// key.
template <int i>
__device__ inline void read_halves(u32 tile, InputWords& words) {
  const u32 from = matrices_of_warp(tile);
#pragma unroll
  for (int row = 0; row < kTileQ; row += 16) {
    u32 pairs[4];
    load_matrices_transposed(pairs, from + row * kPanelWidth);
#pragma unroll
    for (int j = 0; j < 4; ++j) words.of[(row / 4 + j) * kPairWords + word_of(i)] = pairs[j];
  }
}

// Reads elements of 32 bits. No two lanes read the same bank, because the swizzle puts the queries of a quad in
// different chunks.
template <int i>
__device__ inline void read_words(u32 tile, InputWords& words) {
  const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup, warp = thread / 32, lane = thread % 32;
  const u32 query = lane % 4 * 2, panel = tile + warp / 2 * (kTileQ * kPanelWidth);
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const u32 chunk = (warp % 2 * 4 + h * 2 + lane / 16) ^ (query + c);
      const u32 from = panel + (query + c) * kPanelWidth + chunk * 16 + lane / 4 % 4 * 4;
#pragma unroll
      for (int row = 0; row < kTileQ; row += 8)
        words.of[(row / 4 + h) * kPairWords + word_of(i) + c] = load_shared_word(from + row * kPanelWidth);
    }
}

// Copies the 16 keys of this warp, from `key` on, to their rows of a tile. Behind the ends of a tensor nothing is read.
template <int i>
__device__ inline void copy_own_keys(u32 tile, const KernelParams& params, const Sequence& seq, int query, int key) {
  constexpr int kBytes = input_bytes_per_key(config, i), kElements = 4 / kBytes, kWords = 16 / kElements;
  const u32 first = recompute(threadIdx.x) % kThreadsPerWarpgroup / 32 * 16 * kBytes;
#pragma unroll 4
  for (int n = lane_id(); n < kTileQ * kWords; n += 32) {
    const int row = n / kWords, q = min(query + row, seq.q_len - 1);
    u32 word = 0;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int k = min(key + n % kWords * kElements + e, seq.k_len - 1);
      const Int64 at = Variant::input_element(Parameter<i>(), params, seq, q, k);
      if constexpr (kBytes == 2)
        word |= static_cast<u32>(__ldg(static_cast<const u16*>(params.extra[i].data) + at)) << 16 * e;
      else word = __ldg(static_cast<const u32*>(params.extra[i].data) + at);
    }
    const u32 byte = first + n % kWords * 4;
    store_shared(tile + byte / kPanelWidth * (kTileQ * kPanelWidth) + row * kPanelWidth +
                     ((byte % kPanelWidth / 16 ^ row % 8) * 16) + byte % 16,
                 word);
  }
}

// `query` is the first query of the tile, and `key` the first key of this warp.
__device__ inline void copy_own_inputs(const SharedMemory& shared, u32 warpgroup, const KernelParams& params,
                                       const Sequence& seq, int query, int key) {
  __syncwarp();
  Variant::visit_inputs(params, seq, [&](auto input, int, int) {
    constexpr int i = decltype(input)::value;
    copy_own_keys<i>(shared.inputs<i>(warpgroup), params, seq, query, key);
  });
  __syncwarp();
}

__device__ inline void read_inputs(InputWords& words, const SharedMemory& shared, u32 warpgroup,
                                   const KernelParams& params, const Sequence& seq) {
  Variant::visit_inputs(params, seq, [&](auto input, int, int) {
    constexpr int i = decltype(input)::value;
    if constexpr (config.inputs_16 >> i & 1) read_halves<i>(shared.inputs<i>(warpgroup), words);
    else read_words<i>(shared.inputs<i>(warpgroup), words);
  });
}

}  // namespace flashjit
