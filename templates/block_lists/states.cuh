// The launch for lists of blocks that a call gives (blocks= in a spec). It writes the state of each pair of blocks,
// which the mask reads.
#pragma once

#include "config.gen.cuh"
#include "templates/block_lists/layout.h"
#include "templates/device.cuh"

namespace flashjit {

// A block of threads has the lists of a block of queries, whose states lie [batch, head, block of queries].
template <int block_q, int block_k, int heads>
__device__ inline void write_block_states(const KernelParams& params, unsigned char* block_states) {
  const int rows = (params.q_len + block_q - 1) / block_q, columns = (params.k_len + block_k - 1) / block_k;
  const int number = blockIdx.x, row = number % rows, head = number / rows % heads, b = number / rows / heads;
  unsigned char* const states = block_states + static_cast<Int64>(number) * columns;
  for (int i = threadIdx.x; i < columns; i += kBlockStateThreads) states[i] = kBlockLeftOut;
  __syncthreads();
  mark_blocks(params.listed_blocks, b, head, row, columns, kBlockListed, threadIdx.x, kBlockStateThreads, states);
  __syncthreads();  // A block in both lists is full.
  mark_blocks(params.full_blocks, b, head, row, columns, kBlockFull, threadIdx.x, kBlockStateThreads, states);
}

}  // namespace flashjit
