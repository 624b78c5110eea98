// The second launch of the decode family: puts together what several blocks have of a row tile. As many blocks as ranges
// that a tile falls into share its rows and columns, those that have computed them.
#pragma once

#include "templates/decode/rows.cuh"

namespace flashjit {

constexpr int kShares = combine_shares(config);

// A row tile, and the ranges that it falls into.
struct SplitTile {
  Sequence seq;
  int row_lo, rows;
  int begin;  // its first step, of all of the call
  int first_range, ranges, side;
  bool begins_range;  // it begins with its first range

  __device__ const float* part(const float* parts, int i) const {
    return parts + static_cast<Int64>(part_of(first_range + i, side, i > 0 || begins_range)) * kPartFloats;
  }
};

__device__ inline SplitTile split_tile_at(const KernelParams& params, const Ranges& ranges, int step, int side,
                                          int* scratch) {
  const Place at = place_of<kCombineThreads>(params, step, scratch);
  const Tiles tiles = tiles_of(params, at.b);
  const RowTile tile = row_tile_at(params, tiles, at, side);
  SplitTile s;
  s.seq = tile.seq;
  s.row_lo = tile.row_lo;
  s.rows = min(kTileRows, s.seq.q_len * kGroup - s.row_lo);
  s.begin = step - tile.passed;
  s.first_range = ranges.of(s.begin);
  s.ranges = ranges.of(s.begin + tiles.row_steps() - 1) - s.first_range + 1;
  s.side = side;
  s.begins_range = ranges.begin(s.first_range) == s.begin;
  return s;
}

// Four columns of a row, with its state.
struct Quad {
  float4 o;
  RowState state;

  __device__ void clear() {
    o = make_float4(0, 0, 0, 0);
    state = {-kInfinity, 0, -kInfinity};
  }
  // What another part of the keys has of them.
  __device__ void add(const Quad& other) {
    const float reference = fmaxf(state.reference, other.state.reference);
    const float own = weight_of(state.reference, reference), others = weight_of(other.state.reference, reference);
    state = {reference, state.sum * own + other.state.sum * others, fmaxf(state.top, other.state.top)};
    o = scaled(o, own);
    add_scaled(o, other.o, others);
  }
};

// Every `lanes`-th part from `first` on, a few at a time so that their loads are under way together.
constexpr int kAtATime = 8;
template <int lanes>
__device__ inline Quad add_parts(const SplitTile& s, const float* parts, int row, int column, int first) {
  Quad sum;
  sum.clear();
#pragma unroll 1
  for (; first < s.ranges; first += lanes * kAtATime) {
    Quad quads[kAtATime];
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) {
      quads[i].clear();
      if (first + i * lanes >= s.ranges) continue;
      const float* part = s.part(parts, first + i * lanes);
      const float4 state = *reinterpret_cast<const float4*>(part + kTileRows * kPartRow + row * kRowState);
      quads[i].o = *reinterpret_cast<const float4*>(part + row * kPartRow + column);
      quads[i].state = {state.x, state.y, state.z};
    }
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) sum.add(quads[i]);
  }
  return sum;
}

// What all threads of the same columns have, in the first of them.
__device__ inline Quad add_lanes(Quad own, float4* shared) {
  const int lane = threadIdx.x % kColumnLanes, warp = threadIdx.x / 32;
  const auto from = [](float x) { return __shfl_xor_sync(0xffffffff, x, kColumnLanes); };
  Quad other;
  other.o = make_float4(from(own.o.x), from(own.o.y), from(own.o.z), from(own.o.w));
  other.state = {from(own.state.reference), from(own.state.sum), from(own.state.top)};
  own.add(other);
  __syncthreads();  // the columns before are done with
  if (threadIdx.x % 32 < kColumnLanes) {
    shared[(warp * kColumnLanes + lane) * 2] = own.o;
    shared[(warp * kColumnLanes + lane) * 2 + 1] = make_float4(own.state.reference, own.state.sum, own.state.top, 0.0f);
  }
  __syncthreads();
  if (threadIdx.x >= kColumnLanes) return own;
#pragma unroll
  for (int w = 1; w < kCombineThreads / 32; ++w) {
    const float4 state = shared[(w * kColumnLanes + lane) * 2 + 1];
    own.add({shared[(w * kColumnLanes + lane) * 2], {state.x, state.y, state.z}});
  }
  return own;
}

__device__ inline void store_quad(const KernelParams& params, const Sequence& seq, int row, int column, Quad quad) {
  const Row at = row_at(seq, row);
  const float factor = finish_row(params, seq, at, quad.state, column == 0);
  store_columns(params, seq, at, column, scaled(quad.o, factor));
}

// A block of range `range` does its share of the tile.
__device__ inline void combine_tile(const KernelParams& params, const float* parts, const SplitTile& s, int range,
                                    int share_of_range, float4* shared) {
  constexpr int kQuads = config.head_dim_v / 4;
  if (s.ranges == 1) return;  // one block had it all, and has stored it
  const int all = s.rows * kQuads, shares = s.ranges * kShares, share = (all + shares - 1) / shares;
  const int begin = ((range - s.first_range) * kShares + share_of_range) * share, end = min(begin + share, all);
  if (s.ranges <= kAtATime) {  // a thread adds them all up: there are more columns than threads for them
    for (int quad = begin + static_cast<int>(threadIdx.x); quad < end; quad += kCombineThreads) {
      const int row = quad / kQuads, column = quad % kQuads * 4;
      store_quad(params, s.seq, s.row_lo + row, column, add_parts<1>(s, parts, row, column, 0));
    }
    return;
  }
  for (int first = begin; first < end; first += kColumnLanes) {
    const int quad = first + threadIdx.x % kColumnLanes, inside = min(quad, end - 1);
    const int row = inside / kQuads, column = inside % kQuads * 4;
    const Quad sum = add_lanes(add_parts<kPartLanes>(s, parts, row, column, threadIdx.x / kColumnLanes), shared);
    if (threadIdx.x < kColumnLanes && quad < end) store_quad(params, s.seq, s.row_lo + row, column, sum);
  }
}

// Rows of sequences in which nothing is seen, and which belong to no range.
__device__ inline void store_empty(const KernelParams& params, const Sequence& seq) {
  constexpr int kQuads = config.head_dim_v / 4;
  Quad nothing;
  nothing.clear();
  for (int hk = 0; hk < config.heads_kv; ++hk) {
    Sequence of_head = seq;
    of_head.hk = hk;
    for (int i = threadIdx.x; i < seq.q_len * kGroup * kQuads; i += kCombineThreads)
      store_quad(params, of_head, i / kQuads, i % kQuads * 4, nothing);
  }
}

// With fixed parts: all that there are of four columns of a row, in their order. Loads of many are under way together,
// and the sums of these wait for one maximum.
__device__ inline Quad add_fixed_parts(const float* first, int count, int row, int column) {
  constexpr int kTogether = 16;
  Quad sum;
  sum.clear();
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kTogether) {
    float4 states[kTogether], columns[kTogether];
    float reference = sum.state.reference;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float* part = first + static_cast<Int64>(min(begin + i, count - 1)) * kPartFloats;
      states[i] = *reinterpret_cast<const float4*>(part + kTileRows * kPartRow + row * kRowState);
      columns[i] = *reinterpret_cast<const float4*>(part + row * kPartRow + column);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) reference = fmaxf(reference, states[i].x);
    const float own = weight_of(sum.state.reference, reference);
    sum.o = scaled(sum.o, own);
    sum.state = {reference, sum.state.sum * own, sum.state.top};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float weight = begin + i < count ? weight_of(states[i].x, reference) : 0.0f;
      sum.state.sum += states[i].y * weight;
      if (begin + i < count) sum.state.top = fmaxf(sum.state.top, states[i].z);
      add_scaled(sum.o, columns[i], weight);
    }
  }
  return sum;
}

// A block has some columns of the rows of a query.
__device__ inline void combine_fixed_parts(const KernelParams& params, const float* parts) {
  constexpr int kQuads = config.head_dim_v / 4, kAll = config.heads_q * kQuads;
  constexpr int kChunks = (kAll + kCombineThreads - 1) / kCombineThreads;
  const int items = params.batch * params.q_len * kChunks;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int quad = item % kChunks * kCombineThreads + threadIdx.x, query = item / kChunks;
    const int b = params.q_len == 1 ? query : query / params.q_len, q = query - b * params.q_len;
    const int h = quad / kQuads, column = quad % kQuads * 4, row = q * kGroup + h % kGroup;
    if (quad >= kAll) continue;
    const Sequence seq = sequence_of(params, b, h);
    const int count = tiles_of(params, seq).row_steps();
    if (q >= seq.q_len || count == 1) continue;  // with one part its block has stored the row
    const int first = first_part_of(params, b, row / kTileRows, seq.hk);
    store_quad(params, seq, row, column,
               add_fixed_parts(parts + static_cast<Int64>(first) * kPartFloats, count, row % kTileRows, column));
  }
}

__device__ inline void decode_combine(const KernelParams& params, const float* parts) {
  if constexpr (kFixedParts) return combine_fixed_parts(params, parts);
  extern __shared__ __align__(128) unsigned char shared[];
  float4* quads = reinterpret_cast<float4*>(shared);
  int* scratch = reinterpret_cast<int*>(quads + kCombineThreads / 32 * kColumnLanes * 2);
  const int steps = count_steps<kCombineThreads>(params, scratch);
  if (!kSameSteps || steps == 0) {
    for (int b = blockIdx.x; b < params.batch; b += gridDim.x) {
      const Sequence seq = sequence_of(params, b, 0);
      if (tiles_of(params, seq).steps() == 0) store_empty(params, seq);
    }
  }
  if (steps == 0) return;
  const Ranges ranges = ranges_of(params, steps);
  for (int i = blockIdx.x; i < ranges.count * kSideBySide * kShares; i += gridDim.x) {
    const int of_range = i / kShares, range = of_range / kSideBySide, side = of_range % kSideBySide;
    const SplitTile first = split_tile_at(params, ranges, ranges.begin(range), side, scratch);
    combine_tile(params, parts, first, range, i % kShares, quads);
    const SplitTile last = split_tile_at(params, ranges, ranges.begin(range + 1) - 1, side, scratch);
    if (last.begin != first.begin) combine_tile(params, parts, last, range, i % kShares, quads);
  }
}

}  // namespace flashjit
