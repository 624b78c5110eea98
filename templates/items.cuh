// Chooses the items that a block of a persistent kernel takes.
#pragma once

#include "config.gen.cuh"
#include "templates/device.cuh"

namespace flashjit {

// Returns the item of a block's round, counted from 0. A counter gives out items, so that blocks which are done early
// take more. Without a counter items are dealt out back and forth, because each round's items become shorter from block
// to block.
__device__ inline int item_of_round(const KernelParams& params, int round, int blocks = gridDim.x) {
  const int block = blockIdx.x;
  if (round == 0) return block;
  if (params.work_counters) return blocks + atomicAdd(params.work_counters, 1);
  return round * blocks + (round % 2 == 1 ? blocks - 1 - block : block);
}

// The last block resets the counters. One thread of each block calls this when the block has taken its last item.
__device__ inline void return_counters(const KernelParams& params) {
  if (!params.work_counters) return;
  __threadfence();
  if (atomicAdd(params.work_counters + 1, 1) != static_cast<int>(gridDim.x) - 1) return;
  params.work_counters[0] = 0;
  params.work_counters[1] = 0;
}

}  // namespace flashjit
