// What a warpgroup writes: O from registers, LSE and maximum.
#pragma once

#include "templates/hopper_softmax.cuh"

namespace flashjit {

// O to its final scale; the sums become what LSE is taken of, relative to the references (in powers of two).
__device__ inline void normalise(const KernelParams& params, const WorkState& work, RowStates& rows, Output& o) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (config.max_logit && config.reference == Reference::previous) rows.top[h] = fmaxf(rows.top[h], quad_max(rows.seen[h]));
    rows.reference[h] *= kLog2Scale;
    float scale = 1.0f;
    if constexpr (config.sink) {
      const float sink = params.sink[row_of(work, tile_row(threadIdx.x, h)).h] * kLog2e;
      const float raised = fmaxf(rows.reference[h], sink);
      scale = rows.reference[h] == -kInfinity ? 0.0f : exp2_approx(rows.reference[h] - raised);
      rows.sum[h] = rows.sum[h] * scale + (raised == -kInfinity ? 0.0f : exp2_approx(sink - raised));
      rows.reference[h] = raised;
    }
    // Nothing visible leaves a sum of zero.
    const float inverse = rows.sum[h] == 0.0f ? 0.0f : scale * reciprocal_approx(rows.sum[h]);
#pragma unroll
    for (int j = 0; j < config.head_dim_v / 8; ++j) {
      o[4 * j + 2 * h] *= inverse;
      o[4 * j + 2 * h + 1] *= inverse;
    }
  }
}

// Did a reference turn out to be wrong for one of this thread's rows: too low, so that something overflowed, or missing? Infinities
// and NaN of the inputs count as well: the careful loop then says what comes of them.
__device__ inline bool reference_failed(const RowStates& rows, const Output& o) {
  bool failed = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    failed |= !(rows.sum[h] < kLargestSum) || !(fabsf(rows.reference[h]) < kLargeScore * kLog2Scale);
  }
  float zero[4] = {};
#pragma unroll
  for (int i = 0; i < config.head_dim_v / 2; ++i) zero[i % 4] += o[i] * 0.0f;
  return failed || zero[0] + zero[1] + zero[2] + zero[3] != 0.0f;
}

// LSE and maximum.
__device__ inline void store_rows(const KernelParams& params, const WorkState& work, const RowStates& rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Row row = row_of(work, tile_row(recompute(threadIdx.x), h));
    if (lane_id() % 4 != 0 || row.q >= work.seq.q_len) continue;
    Sequence seq = work.seq;
    seq.h = row.h;
    const Int64 at = result_row(params, seq, row.q);
    const float sum = rows.sum[h];
    if constexpr (config.lse != LseBase::none) {
      const float lse = sum == 0.0f ? -kInfinity : rows.reference[h] + log2_approx(sum);
      params.lse[at] = config.lse == LseBase::log2 ? lse : lse * kLn2;
    }
    if constexpr (config.max_logit) {
      // fmaxf drops NaN; the sum does not.
      params.max_logit[at] = sum != sum ? sum : kScaleFolded ? rows.top[h] * config.scale : rows.top[h];
    }
  }
}

// Four lanes hold four words each, a[i] of lane l being word l of group i; afterwards lane l has all four words of group l. All
// fours are exchanged together, so that the shuffles' latencies overlap.
template <int n>
__device__ inline void transpose_quads(u32 (&a)[n]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = lane_id() & distance;
    u32 received[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      // Of each pair of words the lower lane keeps the first and gets its partner's first, the upper lane the second.
      if (!(i & distance)) received[i] = __shfl_xor_sync(0xffffffff, upper ? a[i] : a[i + distance], distance);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (i & distance) continue;
      a[i + distance] = upper ? a[i + distance] : received[i];
      a[i] = upper ? received[i] : a[i];
    }
  }
}

// O straight from registers. A quad holds eight columns of a row in pieces of four bytes; four such groups are exchanged so
// that each lane has 16 bytes in a row: stores of whole 32-byte sectors, without shared memory, barriers or another tensor map.
__device__ inline void store_output(const KernelParams& params, const WorkState& work, const Output& o) {
  constexpr int kGroups = config.head_dim_v / 8;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Row row = row_of(work, tile_row(recompute(threadIdx.x), h));
    const bool inside = row.q < work.seq.q_len;
    const Int64 at = row_offset(params.o_stride, work.seq, row.h, work.seq.q_token + row.q);
    if constexpr (config.output == Element::f32) {
      float* out = static_cast<float*>(params.o) + at + lane_id() % 4 * 2;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        if (inside) *reinterpret_cast<float2*>(out + 8 * j) = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
      }
    } else {
      u16* out = static_cast<u16*>(params.o) + at + lane_id() % 4 * 8;
      // Eight words at a time: enough shuffles under way to hide their latency, and no more registers than there are.
      constexpr int kChunk = 4;
#pragma unroll
      for (int first = 0; first < kGroups; first += kChunk) {
        u32 words[kChunk];
#pragma unroll
        for (int j = 0; j < kChunk; ++j) {
          const int i = 4 * (first + j) + 2 * h;
          words[j] = first + j < kGroups ? pack<config.output>(o[i], o[i + 1]) : 0;
        }
        transpose_quads(words);
#pragma unroll
        for (int j = 0; j < kChunk; j += 4) {
          if (inside && first + j + static_cast<int>(lane_id() % 4) < kGroups) {
            store_global(out + 8 * (first + j), make_uint4(words[j], words[j + 1], words[j + 2], words[j + 3]));
          }
        }
      }
    }
  }
}

}  // namespace flashjit
