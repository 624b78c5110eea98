// Attention of few queries over many keys, for every GPU from sm_80 on: split along the keys, bound by reading K and V.
//
// The query heads of a KV head and their queries are the rows of a tile. Warps of a block share the KV tiles of a
// segment and each has all rows; what they have is put together in shared memory, and what blocks have of one tile by
// the second launch (combine.cuh). Nothing waits for anybody else before that.
#pragma once

#include "templates/decode/combine.cuh"
#include "templates/decode/softmax.cuh"

namespace flashjit {

template <bool ring>
struct TilesOf {
  using type = RegisterTiles;
};
template <>
struct TilesOf<true> {
  using type = RingTiles;
};
using KvTiles = TilesOf<has_ring(config)>::type;

// This warp's part of a segment to its place in shared memory: O row after row, then the states of the rows.
__device__ inline void store_part(float* part, const Output& o, const SoftmaxRows& rows) {
  const int g = lane_id() / 4, i = lane_id() % 4;
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
#pragma unroll
    for (int j = 0; j < kValuePieces; ++j) {
      const int column = j * kValueColumns + g * kLaneColumns;
      if (config.head_dim_v % kValueColumns != 0 && column >= config.head_dim_v) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float* to = part + (r * kOctet + i * 2 + e) * kPartRow + column;
        const auto& w = o[r];
#pragma unroll
        for (int m = 0; m < kValueProducts; m += 2) {
          const auto &first = w[j * kValueProducts + m], &second = w[j * kValueProducts + m + 1];
          *reinterpret_cast<float4*>(to + m * 2) = make_float4(first[e], first[e + 2], second[e], second[e + 2]);
        }
      }
    }
    const float sum = quad_sum(rows.sum[r]);
    if (i == 0) {
      *reinterpret_cast<float4*>(part + kTileRows * kPartRow + (r * kOctet + g) * kRowState) =
          make_float4(rows.reference[r], sum, rows.top[r], 0.0f);
    }
  }
}

// The parts of all warps together: to the outputs, or to the block's part of the tile.
__device__ inline void merge_warps(const KernelParams& params, const Segment& s, const float* shared_parts,
                                   float* parts) {
  constexpr int kQuads = config.head_dim_v / 4;  // of columns in a row
  const int rows = min(kTileRows, s.seq.q_len * kGroup - s.row_lo);
  for (int i = threadIdx.x; i < rows * kQuads; i += kThreads) {
    const int row = i / kQuads, column = i % kQuads * 4;
    RowState whole = {-kInfinity, 0, -kInfinity};
    const float* state = shared_parts + kTileRows * kPartRow + row * kRowState;
#pragma unroll
    for (int w = 0; w < config.warps; ++w) whole.reference = fmaxf(whole.reference, state[w * kPartFloats]);
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < config.warps; ++w) {
      const float4 of_warp = *reinterpret_cast<const float4*>(state + w * kPartFloats);
      const float weight = weight_of(of_warp.x, whole.reference);
      whole.sum += of_warp.y * weight;
      whole.top = fmaxf(whole.top, of_warp.z);
      add_scaled(o, *reinterpret_cast<const float4*>(shared_parts + w * kPartFloats + row * kPartRow + column), weight);
    }
    if (s.part < 0) {
      const Row at = row_at(s.seq, s.row_lo + row);
      const float factor = finish_row(params, s.seq, at, whole, column == 0);
      store_columns(params, s.seq, at, column, scaled(o, factor));
    } else {
      float* part = parts + static_cast<Int64>(s.part) * kPartFloats;
      *reinterpret_cast<float4*>(part + row * kPartRow + column) = o;
      if (column == 0) {
        *reinterpret_cast<float4*>(part + kTileRows * kPartRow + row * kRowState) =
            make_float4(whole.reference, whole.sum, whole.top, 0.0f);
      }
    }
  }
}

// This warp's tiles of a segment, or of the part that comes next, of which `tiles` has begun to load the first.
__device__ inline void attend(const KernelParams& params, const Segment& s, const Queries& queries, KvTiles& tiles,
                              int& tile, Output& o, SoftmaxRows& rows) {
  const int last = kFixedParts ? s.last_of_part : s.last_tile;
  rows.clear();
#pragma unroll
  for (int r = 0; r < kOctets; ++r)
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) o[r][m][0] = o[r][m][1] = o[r][m][2] = o[r][m][3] = 0;
#pragma unroll 1
  while (tile <= last) {
    tiles.await(s, tile);
    Scores scores;
    compute_scores(scores, queries, tiles);
    const int next = next_of_warp(params, s, tile);
    tiles.keys_done(s, next);
    apply_score_and_mask(scores, queries, params, s, tile);
    softmax_step(scores, rows, o);
    accumulate_output(o, scores, tiles);
    tiles.values_done(s, next);
    tile = next;
  }
}

__device__ inline void decode_ranges(const KernelParams& params, const TensorMaps* maps, float* parts) {
  extern __shared__ __align__(1024) unsigned char shared[];
  int* scratch = reinterpret_cast<int*>(shared + kLayout.scratch_offset);
  float* shared_parts = reinterpret_cast<float*>(shared + kLayout.part_offset);
  const Ranges ranges = ranges_of(params, count_steps<kThreads>(params, scratch));
  const int range = blockIdx.x / kSideBySide, side = blockIdx.x % kSideBySide;
  if (range >= ranges.count) return;
  int step = ranges.begin(range);
  const int end = ranges.begin(range + 1);
  if (step == end) return;  // there are no steps at all
  Place place = place_of<kThreads>(params, step, scratch);
  Segment segment = segment_at(params, place, end - step, range, side, true);
  KvTiles tiles(params, maps, shared);
  int tile = first_of_warp(params, segment);
  tiles.begin(segment, tile);
  Queries queries;
  load_queries(queries, params, segment);
  bool goes_on = false;  // with the segment before
#pragma unroll 1
  while (true) {
    if (!goes_on) prepare_queries(queries);
    Output o;
    SoftmaxRows rows;
    attend(params, segment, queries, tiles, tile, o, rows);
    const Segment done = segment;
    goes_on = kFixedParts && done.last_of_part < done.last_tile;
    if (goes_on) {
      if (done.part >= 0) ++segment.part;
      segment.last_of_part = min(done.last_of_part + done.part_tiles, done.last_tile);
    } else {
      step += done.steps;
    }
    if (!goes_on && step < end) {
      // The next tiles and queries are on their way while the warps put together what they have.
      place = place_after(params, place, done.steps);
      segment = segment_at(params, place, end - step, range, side, false);
      tile = first_of_warp(params, segment);
      tiles.begin(segment, tile);
      load_queries(queries, params, segment);
    }
    store_part(shared_parts + warp_id() * kPartFloats, o, rows);
    __syncthreads();
    merge_warps(params, done, shared_parts, parts);
    if (step >= end) return;
    __syncthreads();  // the places of the parts are free again
  }
}

__device__ inline void decode_forward(const KernelParams& params, float* parts) {
  decode_ranges(params, nullptr, parts);
}
__device__ inline void decode_forward(const KernelParams& params, const TensorMaps& maps, float* parts) {
  decode_ranges(params, &maps, parts);
}

}  // namespace flashjit
