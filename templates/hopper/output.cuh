// A warpgroup's results on their way to memory: O from registers, LSE and maximum.
#pragma once

#include "templates/hopper/softmax.cuh"

namespace flashjit {

// Brings O to its final scale. The sums become those from which LSE is computed, relative to the references (in natural
// units).
__device__ inline void normalise(const KernelParams& params, const WorkState& work, RowStates& rows, Output& o) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows.reference[h] *= kNaturalScale;
    rows.sum[h] *= kWeightUnit;
    float scale = is_scaled(config) ? kWeightUnit * work.scales.v : kWeightUnit;
    // The launch that puts parts together takes in the sink of items with several parts.
    if (config.sink && !(kKeyParts && params.parts > 1))
      scale *= add_sink(params, row_of(work, tile_row(threadIdx.x, h)).h, rows.reference[h], rows.sum[h]);
    // A row that sees no key has a sum of zero.
    const float inverse = rows.sum[h] == 0.0f ? 0.0f : scale * kDropoutFactor * reciprocal_approx(rows.sum[h]);
#pragma unroll
    for (int j = 0; j < config.head_dim_v / 8; ++j) {
      o[4 * j + 2 * h] *= inverse;
      o[4 * j + 2 * h + 1] *= inverse;
    }
  }
}

// Returns whether a reference turned out to be wrong for one of this thread's rows: too low, so that something
// overflowed, or missing. Infinities and NaN of the inputs count as well: the careful loop then finds their results.
__device__ inline bool reference_failed(const WorkState& work, const RowStates& rows, const Output& o) {
  bool failed = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // A row that sees no key has not failed: its sum is zero or, where a step took this reference, infinite.
    const float reference = rows.reference[h];
    failed |= !(rows.sum[h] < kLargestSum * kWeightUnit) ||
              (fabsf(reference) >= kLargeScore * kNaturalScale && reference != -kInfinity);
    if constexpr (kCapped)
      failed |= rows.polynomial && !arguments_were_small(rows.reference[h], rows.sum[h], work.seq.k_len);
  }
  float zero[4] = {};
#pragma unroll
  for (int i = 0; i < config.head_dim_v / 2; ++i) zero[i % 4] += o[i] * 0.0f;
  return failed || zero[0] + zero[1] + zero[2] + zero[3] != 0.0f;
}

// Stores LSE and maximum.
__device__ inline void store_rows(const KernelParams& params, const WorkState& work, const RowStates& rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // The row is opaque. Otherwise ptxas keeps what storing O derives from it in registers until then, and d=256 with a
    // mask spills.
    const int of_tile = static_cast<int>(recompute(tile_row(recompute(threadIdx.x), h)));
    const Row row = row_of(work, of_tile);
    if (recompute(threadIdx.x) % 4 != 0 || row.q >= work.seq.q_len) continue;
    Sequence seq = work.seq;
    seq.h = row.h;
    const Int64 at = result_row(params, seq, row.q);
    store_row_results(params, at, rows.reference[h], rows.sum[h], rows.top[h]);
  }
}

// With accumulate, O and LSE continue those of earlier calls. A lane has two neighbouring columns of each eight.
__device__ inline void store_continued(const KernelParams& params, const WorkState& work, const RowStates& rows,
                                       const Output& o) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // The row is found twice. With three warpgroups, registers that kept it while its LSE is loaded would spill.
    const int of_tile = static_cast<int>(recompute(tile_row(recompute(threadIdx.x), h)));
    const Row row = row_of(work, of_tile);
    if (row.q >= work.seq.q_len) continue;
    Sequence seq = work.seq;
    seq.h = row.h;
    const Int64 result = result_row(params, seq, row.q);
    const Continued c = continue_row(params, result, rows.reference[h], rows.sum[h]);
    const u32 lane = recompute(threadIdx.x) % 32;
    __syncwarp(0xfu << (lane & ~3u));
    if (c.keeps) continue;
    if (lane % 4 == 0) params.lse[result] = c.lse;
    const Row again = row_of(work, static_cast<int>(recompute(of_tile)));
    float* out = static_cast<float*>(params.o) + query_row(params.o_stride, work.seq, again.h, again.q) +
                 recompute(threadIdx.x) % 4 * 2;
    // Several loads are issued before the first store. A store may change what a later load reads, so loads behind
    // stores would each wait for themselves.
    constexpr int kEights = config.head_dim_v / 8, kTogether = kEights < 16 ? kEights : 16;
#pragma unroll
    for (int first = 0; first < kEights; first += kTogether) {
      float2 there[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) there[j] = earlier_pair(out + 8 * (first + j), c.before, first + j < kEights);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int i = 4 * (first + j) + 2 * h;
        if (first + j >= kEights) break;
        const float2 sum =
            make_float2(fmaf(there[j].x, c.before, o[i] * c.own), fmaf(there[j].y, c.before, o[i + 1] * c.own));
        *reinterpret_cast<float2*>(out + 8 * (first + j)) = sum;
      }
    }
  }
}

// Holds where blocks store their parts of items that are cut. Kernels that cut no items have no such member: a member
// that nobody reads changes which registers ptxas takes.
template <bool cuts>
struct KeyParts {
  float* first;
  __device__ void set_parts(float* parts) { first = parts; }
  __device__ float* part_of(int rank) const { return first + static_cast<Int64>(rank) * hopper_part_floats(config); }
};
template <>
struct KeyParts<false> {
  __device__ static void set_parts(float*) {}
  __device__ static float* part_of(int) { return nullptr; }
};

// Stores a block's part of an item that is cut. Nobody reads the rows behind the last query.
__device__ inline void store_part(float* part, const RowStates& rows, const Output& o, bool saw_keys) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = tile_row(recompute(threadIdx.x), h), lane = static_cast<int>(recompute(threadIdx.x)) % 4;
    float* to = part + row * config.head_dim_v + lane * 2;
#pragma unroll
    for (int j = 0; j < config.head_dim_v / 8; ++j)
      *reinterpret_cast<float2*>(to + 8 * j) = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
    if (lane != 0) continue;
    float* of_row = part + kTileQ * config.head_dim_v + row;
    of_row[0] = rows.reference[h];
    of_row[kTileQ] = saw_keys ? rows.sum[h] : 0.0f;
    if constexpr (config.max_logit) of_row[2 * kTileQ] = rows.top[h];
  }
}

// O of an item that saw no keys is written as 0, whatever the registers hold: `kept` is the mask of the bits that stay.
__device__ inline u32 output_word(const Output& o, int i, u32 kept) {
  return pack<config.output>(o[i], o[i + 1]) & kept;
}
__device__ inline float output_float(const Output& o, int i, u32 kept) {
  return __uint_as_float(__float_as_uint(o[i]) & kept);
}

// Returns where the warp's rows of O lie: in the slot of this Q, or in memory of their own once earlier rows have left
// it.
__device__ inline u32 output_address(const SharedMemory& shared, u32 stage_of_q) {
  if constexpr (output_replaces_queries(config)) return shared.q(stage_of_q);
  wait_stores_read();
  __syncwarp();
  return shared.output();
}

// Stores O by way of shared memory, in panels that are swizzled as Q's are.
__device__ inline void send_output(const TensorMap& map, const EndSteps& steps, u32 address, const WorkState& work,
                                   const Output& o, u32 kept) {
  constexpr PanelLayout kO = panel_layout(kTileQ, config.head_dim_v, config.output);
  constexpr int kEights = config.head_dim_v / 8, kChunks = kPanelWidth / 16;
  const u32 lane = lane_id(), row = lane % 16;
  const u32 first_row = recompute(threadIdx.x) / 32 * 16 - kThreadsPerWarpgroup / 2;
  const u32 panel = address + first_row * kPanelWidth;
  // The hardware's swizzle puts chunk lane / 16 of this row here.
  const u32 chunk = row % kChunks ^ lane / 16;
#pragma unroll
  for (int j = 0; j < kEights; j += 2) {
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j + i / 2 < kEights) words[i] = output_word(o, 4 * j + 2 * i, kept);
    }
    store_matrices(panel + j / kChunks * kO.panel_bytes() + row * kPanelWidth + (chunk ^ j % kChunks) * 16, words[0],
                   words[1], words[2], words[3]);
  }
  fence_async_proxy();
  __syncwarp();
  Sequence seq = work.seq;
  seq.b = uniform(seq.b);
  seq.h = uniform(seq.h);
  const int query = uniform(work.q_lo + static_cast<int>(first_row) / kGroup);
  const u32 first_panel = uniform(panel);
  if (lane != 0) return;
#pragma unroll
  for (int i = 0; i < kO.panels(); ++i) {
    const u32 from = first_panel + i * kO.panel_bytes();
    const int column = i * kO.panel_columns();
    store_queries(map, steps, from, seq, column, query);
  }
  commit_stores();
}

// Stores O directly from registers. A lane has two neighbouring columns of each eight. Lanes exchange one pair with
// their neighbour, so that an even lane has four columns of one eight, and an odd lane four of the next: stores of
// whole 32-byte sectors, without shared memory, barriers or another tensor map.
__device__ inline void store_output(const KernelParams& params, const WorkState& work, const Output& o, u32 kept) {
  constexpr int kEights = config.head_dim_v / 8;
  const u32 lane = lane_id();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Row row = row_of(work, tile_row(recompute(threadIdx.x), h));
    const bool inside = row.q < work.seq.q_len;
    const Int64 at = query_row(params.o_stride, work.seq, row.h, row.q);
    if constexpr (config.output == Element::f32) {
      float* out = static_cast<float*>(params.o) + at + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const int i = 4 * j + 2 * h;
        if (inside)
          *reinterpret_cast<float2*>(out + 8 * j) = make_float2(output_float(o, i, kept), output_float(o, i + 1, kept));
      }
    } else {
      // All words are exchanged before the first is stored, so that the latencies of the exchanges overlap.
      const bool odd = lane % 2 != 0;
      u32 words[2 * ((kEights + 1) / 2)] = {};
#pragma unroll
      for (int j = 0; j < kEights; ++j) words[j] = output_word(o, 4 * j + 2 * h, kept);
#pragma unroll
      for (int j = 0; j < kEights; j += 2) {
        const u32 received = __shfl_xor_sync(0xffffffff, odd ? words[j] : words[j + 1], 1);
        words[j] = odd ? received : words[j];
        words[j + 1] = odd ? words[j + 1] : received;
      }
      auto* out = static_cast<Bits<config.output>*>(params.o) + at + (odd ? 8 : 0) + lane % 4 / 2 * 4;
#pragma unroll
      for (int j = 0; j < kEights; j += 2) {
        if (inside && (j + 1 < kEights || !odd)) store_global(out + 8 * j, make_uint2(words[j], words[j + 1]));
      }
    }
  }
}

}  // namespace flashjit
