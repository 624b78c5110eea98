// Several blocks may share the queries of a tile of keys (KernelParams::parts). Each has some of the query tiles, its
// warps add their sums of dK and dV to sums in memory, and the last warp that adds to the same sums takes all.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"

namespace flashjit {

// Returns where element `e` of four sums of each lane of a warp lies. One instruction adds all four, or one of them:
// the sums that a warp adds by one instruction lie in a row.
__device__ inline u32 offset_of_sum(u32 lane, int e) {
#if __CUDA_ARCH__ >= 900
  return lane * 4 + e;
#else
  return e * 32 + lane;
#endif
}

// Adds four sums to memory if they are wanted. This is a predicate of the instruction, because a branch around each
// would take longer than what it saves. `step` leads from one sum to the next, where they are not added at once.
template <int step>
__device__ inline void add_four(float* at, bool wanted, const float (&sums)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(
          at),
      "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3]), "r"(static_cast<u32>(wanted))
      : "memory");
#else
#pragma unroll
  for (int e = 0; e < 4; ++e)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p red.relaxed.gpu.global.add.f32 [%0], %1;\n}" ::"l"(at + e * step),
        "f"(sums[e]), "r"(static_cast<u32>(wanted))
        : "memory");
#endif
}
__device__ inline void add_to_memory(float* tile, bool wanted, const float (&sums)[4]) {
  add_four<32>(tile + offset_of_sum(threadIdx.x % 32, 0), wanted, sums);
}

// Returns the first query tile of an item, and makes its number that of its tile of keys. This is a loop, because a
// division takes more registers than some warps have.
__device__ inline int take_part(const KernelParams& params, int& number) {
  int first = 0;
  for (; number >= params.key_items; number -= params.key_items) first += params.part_tiles;
  return first;
}

struct PartSums {
  float* sums;
  int* done;  // For each warp: how many items have added to its sums.

  // Returns the `floats` sums of a warp. Warps are counted over all tiles of keys.
  __device__ float* of_warp(int warp, int floats) const { return sums + static_cast<Int64>(warp) * floats; }
  static constexpr int kFour = 4 * 32;  // The step from four sums of each lane to the next four.

  template <int count>
  __device__ static void add(float* to, const float (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; i += 4, to += kFour) {
      const float four[4] = {x[i], x[i + 1], x[i + 2], x[i + 3]};
      add_to_memory(to, true, four);
    }
  }
  // It reads from L2, because other blocks have added to the sums.
  template <int count>
  __device__ static void read(float (&x)[count], const float* from) {
#pragma unroll
    for (int i = 0; i < count; i += 4, from += kFour)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i + e] = __ldcg(from + offset_of_sum(threadIdx.x % 32, e));
  }

  // A warp calls this when it has added its part. Returns whether it was the last one.
  __device__ bool is_last(int warp, int parts) const {
    __threadfence();
    __syncwarp();
    int before = 0;
    if (threadIdx.x % 32 == 0) before = atomicAdd(done + warp, 1);
    const bool last = __shfl_sync(0xffffffff, before, 0) == parts - 1;
    __threadfence();
    return last;
  }

  // All blocks of the first launch, each of `threads` threads, run this, for tiles of keys with `warps` warps of
  // `floats` floats.
  template <int threads>
  __device__ void clear(const KernelParams& params, int warps, int floats) const {
    if (params.parts == 1) return;
    const int first = blockIdx.x * threads + threadIdx.x, step = gridDim.x * threads;
    const int all = params.key_items * warps;
    auto* fours = reinterpret_cast<float4*>(sums);
    // (Unrolled, these loops would make registers of the launch spill.)
#pragma unroll 1
    for (int i = first; i < all * (floats / 4); i += step) fours[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int i = first; i < all; i += step) done[i] = 0;
  }
};

}  // namespace flashjit
