// Stores gradients of tensors that the score reads in tiles, [.., query, .., key], four neighbouring keys at a time.
// Lanes with the same queries exchange values, so that a warp stores, or adds, 64 bytes of each of eight rows.
#pragma once

#include "templates/hopper_backward/output.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/work.cuh"

namespace flashjit {

// The place of this lane's first four elements in a tile: a query, and the first of four keys.
struct FourKeys {
  int query, key;
  __device__ FourKeys(const BackwardItem& item, u32 keys, int tile) {
    // `lane` is the number among the four lanes that exchange values.
    const int thread = recompute(threadIdx.x) % kThreadsPerWarpgroup, lane = thread / 4 % 4;
    query = tile * kTileQ + thread % 4 * 2 + lane % 2;
    key = item.k_lo + static_cast<int>(keys) + thread / 32 * 16 + thread % 32 / 16 * 4 + lane / 2 * 8;
  }
};

struct GradientTiles {
  const KernelParams& params;
  const BackwardItem& item;
  u32 keys;  // This warpgroup's first key, counted from the item's first.
  int tile;
  float* to[kReads > 0 ? kReads : 1];

  // `whole` is true if all of the tile exists. Returns true if, besides, four elements are 16 bytes that one access can
  // write.
  __device__ bool begin(const Sequence& seq, bool whole) {
    const FourKeys at(item, keys, tile);
    bool in_one = whole;
    each_read([&](auto number) {
      constexpr int read = decltype(number)::value;
      if constexpr (Variant::in_tiles(read)) {
        to[read] = element_of_gradient<read>(params, seq, at.query, at.key);
        in_one &= right<read>(seq) == 1 && down<read>(seq) % 4 == 0 && reinterpret_cast<Int64>(to[read]) % 16 == 0;
      }
    });
    return uniform(in_one);
  }

  // Writes a thread's values of eight queries, from `row` of the tile on: by_logit[2 h + c] belongs to key h and query
  // c.
  template <bool in_one, class Derivatives>
  __device__ void add(const Sequence& seq, int row, const float (&by_logit)[4], const Derivatives (&derivatives)[4]) {
    each_read([&](auto number) {
      constexpr int read = decltype(number)::value;
      if constexpr (Variant::in_tiles(read)) {
        float values[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          // 0 stays 0, as in add().
          values[e] = by_logit[e] == 0.0f ? by_logit[e] : by_logit[e] * derivatives[e].by_read[read];
        exchange<4>(values);
        if constexpr (in_one) put_four<read>(values);
        else put_existing<read>(seq, row, values);
        to[read] += 8 * down<read>(seq);
      }
    });
  }

 private:
  template <int read>
  __device__ Int64 down(const Sequence& seq) const {
    return element_of_gradient<read>(params, seq, 1, 0) - element_of_gradient<read>(params, seq, 0, 0);
  }
  template <int read>
  __device__ Int64 right(const Sequence& seq) const {
    return element_of_gradient<read>(params, seq, 0, 1) - element_of_gradient<read>(params, seq, 0, 0);
  }

  template <int read>
  __device__ void put_four(const float (&values)[4]) const {
    if constexpr (Variant::gradient_sum(read) == GradientSum::own)
      *reinterpret_cast<float4*>(to[read]) = make_float4(values[0], values[1], values[2], values[3]);
    else add_to_global(to[read], values[0], values[1], values[2], values[3]);
  }
  // This function computes its coordinates itself, so that they take no registers elsewhere.
  template <int read>
  __device__ void put_existing(const Sequence& seq, int row, const float (&values)[4]) const {
    const FourKeys at(item, keys, tile);
    if (at.query + row >= seq.q_len) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* element = to[read] + i * right<read>(seq);
      if (at.key + i >= seq.k_len) continue;
      if constexpr (Variant::gradient_sum(read) == GradientSum::own) *element = values[i];
      else if (values[i] != 0.0f) add_to_memory(element, values[i]);
    }
  }
};

}  // namespace flashjit
