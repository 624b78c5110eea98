// Forward attention for sm_90a: TMA copies by a producer, warpgroup matrix products, online softmax.
//
// A block is one producer warpgroup, of which one thread works (and three warps where they transpose V), and up to three
// consumer warpgroups of 64 query rows each. KV tiles are visited from the last to the first: with a causal mask the
// tiles that need mask code come first, and the rest of the loop is free of it.
#pragma once

#include "loop.gen.cuh"
#include "templates/hopper/producer.cuh"
#include "templates/hopper/transpose.cuh"

namespace flashjit {

__device__ inline void hopper_forward(const KernelParams& params, const TensorMaps& maps, const char* tiles = nullptr,
                                      float* parts = nullptr) {
  extern __shared__ __align__(1024) char memory[];
  const SharedMemory shared = {shared_address(memory), memory};
  set_up(shared, params);
  if (threadIdx.x < kThreadsPerWarpgroup) {
    shrink_registers<producer_registers(config)>();
    if (kInPages ? threadIdx.x < kProducers : threadIdx.x == 0) Producer{params, maps, shared, tiles}.run();
    if constexpr (kTransposesValues) {
      if (threadIdx.x >= kThreadsPerWarpgroup - 32 * kTransposingWarps) Transposer{shared}.run();
    }
  } else {
    grow_registers<consumer_registers(config)>();
    Consumer consumer{{{}, {}, {}, params, maps, shared}};
    consumer.set_parts(parts);
    consumer.run();
  }
}

}  // namespace flashjit
