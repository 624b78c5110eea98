// After the backward loop: dQ, scaled, in the type and place that it is wanted in.
#pragma once

#include "templates/hopper/device.cuh"
#include "templates/hopper_backward/output.cuh"
#include "templates/sequence.cuh"

namespace flashjit {

// One block for each query tile of each head and batch index. Sums lie as warpgroups held them: of thread t,
// four registers j are at (j * 128 + t) * 4, which are two neighbouring columns of two rows.
__device__ inline void finish_backward(const KernelParams& params, const float* dq_sums) {
  constexpr int kQuads = dq_columns(config) / 8 * kThreadsPerWarpgroup;  // of a warpgroup
  const int tile = blockIdx.x % params.tiles_q, heads = blockIdx.x / params.tiles_q, head = heads % config.heads_q;
  const Sequence seq = sequence_of(params, heads / config.heads_q, head);
  const auto* sums = reinterpret_cast<const float4*>(dq_sums + static_cast<Int64>(blockIdx.x) * dq_sum_floats(config));
  const Int64 begin = query_row(params.dq_stride, seq, head, 0);
#pragma unroll 4
  for (int i = threadIdx.x; i < config.warpgroups * kQuads; i += kFinishThreads) {
    const int warpgroup = i / kQuads, thread = i % kThreadsPerWarpgroup, eight = i % kQuads / kThreadsPerWarpgroup;
    const int row =
        thread / 32 * 16 + thread % 32 / 4 + (splits_dq_columns(config) ? 0 : warpgroup * kRowsPerWarpgroup);
    const int column = eight * 8 + thread % 4 * 2 + (splits_dq_columns(config) ? warpgroup * dq_columns(config) : 0);
    if (column >= config.head_dim_qk) continue;
    const float4 sum = sums[i];
    const float values[4] = {sum.x * config.scale, sum.y * config.scale, sum.z * config.scale, sum.w * config.scale};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = tile * config.tile_q + row + 8 * h;
      if (q >= seq.q_len) continue;
      store_pair<config.output>(params.dq, begin + q * params.dq_stride.token + column, values[2 * h],
                                values[2 * h + 1]);
    }
  }
}

}  // namespace flashjit
