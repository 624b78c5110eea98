// The second launch of the decode family: puts together what several blocks have of a row tile. As many blocks as ranges
// that a tile falls into share its rows and columns, those that have computed them.
#pragma once

#include "templates/decode/rows.cuh"

namespace flashjit {

// Tiles of many rows have more columns than the threads of one block can add up in time.
constexpr int kLeastBlocksOfRange = config.tile_q >= 64 ? 8 : 1;

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
  const Cursor at = cursor_at<kCombineThreads>(params, step, scratch);
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
      if (first + i * lanes < s.ranges) quads[i] = load_quad(s.part(parts, first + i * lanes), row, column);
    }
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) sum.add(quads[i]);
  }
  return sum;
}

// The sum of the parts that all lanes of the same columns have.
__device__ inline Quad add_lanes(Quad own) {
#pragma unroll
  for (int lanes = kColumnLanes; lanes < 32; lanes *= 2) {
    const auto from = [lanes](float x) { return __shfl_xor_sync(0xffffffff, x, lanes); };
    Quad other;
    other.o = make_float4(from(own.o.x), from(own.o.y), from(own.o.z), from(own.o.w));
    other.state = {from(own.state.reference), from(own.state.sum), from(own.state.top)};
    own.add(other);
  }
  return own;
}

// Blocks of the second launch for each range: all that there are, so that a short call with few ranges has them too. A
// block may then come by one pass over its columns; passes follow one another, each as long as memory takes to answer.
__device__ inline int blocks_of_range(const Ranges& ranges) {
  return max(kLeastBlocksOfRange, static_cast<int>(gridDim.x) / (ranges.count * kSides));
}

// A block of range `range`, number `block` of `blocks`, does its share of the tile.
__device__ inline void combine_tile(const KernelParams& params, const float* parts, const SplitTile& s, int range,
                                    int block, int blocks) {
  constexpr int kQuads = config.head_dim_v / 4;
  if (s.ranges == 1) return;  // one block had it all, and has stored it
  const int all = s.rows * kQuads, shares = s.ranges * blocks, share = (all + shares - 1) / shares;
  const int begin = ((range - s.first_range) * blocks + block) * share, end = min(begin + share, all);
  if (s.ranges <= kAtATime) {  // a thread adds them all up: there are more columns than threads for them
    for (int quad = begin + static_cast<int>(threadIdx.x); quad < end; quad += kCombineThreads) {
      const int row = quad / kQuads, column = quad % kQuads * 4;
      store_quad(params, s.seq, s.row_lo + row, column, add_parts<1>(s, parts, row, column, 0));
    }
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int first = begin + warp * kColumnLanes; first < end; first += kCombineThreads / 32 * kColumnLanes) {
    const int quad = first + lane % kColumnLanes, inside = min(quad, end - 1);
    const int row = inside / kQuads, column = inside % kQuads * 4;
    const Quad sum = add_lanes(add_parts<32 / kColumnLanes>(s, parts, row, column, lane / kColumnLanes));
    if (lane < kColumnLanes && quad < end) store_quad(params, s.seq, s.row_lo + row, column, sum);
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

// With fixed parts: adds up all parts of four columns of a row, one after the other. Loads of many are under way together.
__device__ inline Quad add_fixed_parts(const float* first, int count, int row, int column) {
  Quad sum = load_quad(first, row, column);
#pragma unroll 1
  for (int begin = 1; begin < count; begin += kAtATime) {
    Quad quads[kAtATime];
#pragma unroll
    for (int i = 0; i < kAtATime; ++i)
      quads[i] = load_quad(first + static_cast<Int64>(min(begin + i, count - 1)) * kPartFloats, row, column);
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) {
      if (begin + i < count) sum.add(quads[i]);
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
    Quad sum;
    sum.clear();
    if (count > 0) {
      const int first = first_part_of(params, b, row / kTileRows, seq.hk);
      sum = add_fixed_parts(parts + static_cast<Int64>(first) * kPartFloats, count, row % kTileRows, column);
    }
    store_quad(params, seq, row, column, sum);
  }
}

// It may begin while the first launch ends, and looks for its work before it waits.
__device__ inline void decode_combine(const KernelParams& params, const float* parts) {
  if constexpr (kFixedParts) {
    wait_for_launch_before();
    return combine_fixed_parts(params, parts);
  }
  extern __shared__ int scratch[];
  const int steps = count_steps<kCombineThreads>(params, scratch);
  if (!kSameSteps || steps == 0) {
    for (int b = blockIdx.x; b < params.batch; b += gridDim.x) {
      const Sequence seq = sequence_of(params, b, 0);
      if (tiles_of(params, seq).steps() == 0) store_empty(params, seq);
    }
  }
  const Ranges ranges = ranges_of(params, steps);
  const int blocks = blocks_of_range(ranges), count = steps == 0 ? 0 : ranges.count * kSides * blocks;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const int of_range = i / blocks, range = of_range / kSides, side = of_range % kSides;
    const SplitTile first = split_tile_at(params, ranges, ranges.begin(range), side, scratch);
    const SplitTile last = split_tile_at(params, ranges, ranges.begin(range + 1) - 1, side, scratch);
    wait_for_launch_before();
#pragma unroll 1  // what runs for the first time comes from memory
    for (SplitTile tile = first;; tile = last) {
      combine_tile(params, parts, tile, range, i % blocks, blocks);
      if (tile.begin == last.begin) break;
    }
  }
  wait_for_launch_before();  // who has nothing to add up does not end before the first launch, either
}

}  // namespace flashjit
