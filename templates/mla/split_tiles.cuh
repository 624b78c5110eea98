// The second launch of mla adds up row tiles that several clusters have parts of. The first launch writes behind the
// parts which tiles these are: finding them takes longer than adding them up, and a warp of the first launch has time
// for it.
#pragma once

#include "templates/decode/combine.cuh"
#include "templates/mla/work.cuh"

namespace flashjit {

static_assert(sizeof(SplitTile) <= kSplitTileBytes);
__device__ inline int most_ranges(const KernelParams& params) { return params.blocks / kCluster; }

// Returns one of the two tiles that a range begins and ends with. Where these are one tile, the second entry falls into
// no range.
__device__ inline SplitTile& told_tile(const KernelParams& params, float* parts, int range, int i) {
  float* behind = parts + static_cast<Int64>(most_ranges(params)) * kPartsPerBlock * kPartFloats;
  return reinterpret_cast<SplitTile*>(behind)[range * kPartsPerBlock + i];
}

// A warp calls this at the end of its range.
__device__ inline void tell_split_tiles(const KernelParams& params, const Progress& at, float* parts) {
  const Segments& s = at.segments;
  const int i = static_cast<int>(lane_id()), first = s.ranges.begin(s.range);
  if (i >= kPartsPerBlock || cluster_rank() != 0) return;
  SplitTile& tile = told_tile(params, parts, s.range, i);
  if (i > 0 && s.step == first) tile.ranges = 0;
  else tile = split_tile_at(params, s.ranges, i == 0 ? first : s.step, i == 0 ? s.begin : s.cursor, 0);
}
// A cluster without a range calls this.
__device__ inline void tell_no_tiles(const KernelParams& params, int range, float* parts) {
  if (threadIdx.x < kPartsPerBlock) told_tile(params, parts, range, threadIdx.x).ranges = 0;
}

// Each range has the same number of blocks, which share the tiles that the range has parts of.
__device__ inline void mla_combine(const KernelParams& params, float* parts) {
  if constexpr (kFixedParts) {
    wait_for_launch_before();
    return combine_fixed_parts(params, parts);
  }
  if (!kSameSteps || tiles_of(params, 0).count == 0) store_all_empty(params);
  wait_for_launch_before();
  const int blocks = max(1, static_cast<int>(gridDim.x) / most_ranges(params)), all = most_ranges(params) * blocks;
#pragma unroll 1
  for (int i = blockIdx.x; i < all * kPartsPerBlock; i += gridDim.x) {
    const int number = i % all, range = number / blocks;
    combine_tile(params, parts, told_tile(params, parts, range, i / all), range, number % blocks, blocks);
  }
}

}  // namespace flashjit
