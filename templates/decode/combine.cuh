// The second launch of the decode family puts together what several blocks have of a row tile. Its rows and columns are
// shared by as many blocks as there are ranges that the tile falls into.
#pragma once

#include "templates/decode/rows.cuh"

namespace flashjit {

// A row tile, and the ranges that it falls into.
struct SplitTile {
  Sequence seq;
  int row_lo, rows;
  int begin;                      // The tile's first step, among all steps of the call.
  int first_range, ranges, side;  // The ranges that have keys of the tile.
  bool begins_range;              // True if the tile's first range has no keys of another tile before it.
};

// The parts of a tile. All but the first are as far apart as ranges are; the first one's range may begin with another
// tile.
struct TileParts {
  const float *first, *second;
  int count;
  static constexpr Int64 kStep = static_cast<Int64>(kSides) * kPartsPerBlock * kPartFloats;
  __device__ TileParts(const SplitTile& s, const float* parts)
      : first(parts + static_cast<Int64>(part_of(s.first_range, s.side, s.begins_range)) * kPartFloats),
        second(parts + static_cast<Int64>(part_of(s.first_range + 1, s.side, true)) * kPartFloats),
        count(s.ranges) {}
};

__device__ inline SplitTile split_tile_at(const KernelParams& params, const Ranges& ranges, int step, const Cursor& at,
                                          int side) {
  const Tiles tiles = tiles_of(params, at.b);
  const RowTile tile = row_tile_at(params, tiles, at, side, ranges.lead);
  SplitTile s;
  s.seq = tile.seq;
  s.row_lo = tile.row_lo;
  s.rows = min(kTileRows, s.seq.q_len * kGroup - s.row_lo);
  s.begin = step - tile.passed;
  s.first_range = ranges.of(s.begin + ranges.lead);
  s.ranges = ranges.of(s.begin + ranges.lead + tiles.row_steps() - 1) - s.first_range + 1;
  s.side = side;
  s.begins_range = ranges.begin(s.first_range) >= s.begin;
  return s;
}

// Lane 0 adds the first part, and each lane adds every `lanes`-th of the others. A lane loads a few parts at a time, so
// that their loads are under way together.
constexpr int kAtATime = kPartsAreLarge ? 6 : 8;
// One thread adds up at most this number of parts.
constexpr int kMostOfThread = kPartsAreLarge ? 32 : kAtATime;
template <int lanes>
__device__ inline Quad add_parts(const TileParts& parts, int row, int column, int lane) {
  Quad sum;
  sum.clear();
  if (lane == 0) sum = load_quad(parts.first, row, column);
  const float* next = parts.second + lane * TileParts::kStep;
#pragma unroll 1
  for (int left = parts.count - 1 - lane; left > 0; left -= lanes * kAtATime) {
    Quad quads[kAtATime];
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) {
      quads[i].clear();
      if (i * lanes < left) quads[i] = load_quad(next + i * lanes * TileParts::kStep, row, column);
    }
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) sum.add(quads[i]);
    next += lanes * kAtATime * TileParts::kStep;
  }
  return sum;
}

// Returns the sum of the parts that all lanes of the same columns have.
__device__ inline Quad add_lanes(Quad own) {
#pragma unroll
  for (int lanes = kColumnLanes; lanes < 32; lanes *= 2) {
    const auto from = [lanes](float x) { return __shfl_xor_sync(0xffffffff, x, lanes); };
    Quad other;
    other.o = make_float4(from(own.o.x), from(own.o.y), from(own.o.z), from(own.o.w));
    other.state = {from(own.state.reference), from(own.state.sum), from(own.state.top)};
    if constexpr (config.accumulate) other.state.earlier = earlier_of<Earlier>(from(float_of(own.state.earlier)));
    own.add(other);
  }
  return own;
}

// A warp adds up rows, two at a time, where tiles have many rows but few parts. Each lane then has all its
// quads of a row, so that their loads are under way together, and the state of a row is computed once.
constexpr int kQuadsOfLane = larger(config.head_dim_v / 128, 1), kRowsAtATime = 2, kMostPartsOfWarp = 4;
constexpr bool kWarpsHaveRows = kPartsAreLarge && config.head_dim_v % 128 == 0;
struct WarpRow {
  RowState state;
  float4 o[kQuadsOfLane];
};
__device__ inline WarpRow load_row(const float* part, int row, int column) {
  WarpRow loaded = {load_state(part, row)};
#pragma unroll
  for (int j = 0; j < kQuadsOfLane; ++j) loaded.o[j] = load_columns(part, row, column + 128 * j);
  return loaded;
}
__device__ inline void add_rows(const KernelParams& params, const TileParts& parts, const SplitTile& s, int first_row,
                                int step) {
  const int column = static_cast<int>(threadIdx.x) % 32 * 4;
  const auto row_of = [&](int r) { return min(first_row + r * step, s.rows - 1); };
  WarpRow sums[kRowsAtATime];
#pragma unroll
  for (int r = 0; r < kRowsAtATime; ++r) sums[r] = load_row(parts.first, row_of(r), column);
  const float* next = parts.second;
#pragma unroll 1
  for (int i = 1; i < parts.count; ++i, next += TileParts::kStep) {
    WarpRow loaded[kRowsAtATime];
#pragma unroll
    for (int r = 0; r < kRowsAtATime; ++r) loaded[r] = load_row(next, row_of(r), column);
#pragma unroll
    for (int r = 0; r < kRowsAtATime; ++r) {
      const PartWeights weights = sums[r].state.add_part(loaded[r].state);
#pragma unroll
      for (int j = 0; j < kQuadsOfLane; ++j) sums[r].o[j] = weights.sum(sums[r].o[j], loaded[r].o[j]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsAtATime; ++r) {
    if (first_row + r * step >= s.rows) return;
    const Row at = row_at(s.seq, s.row_lo + row_of(r));
    const RowEnd end = finish_row(params, s.seq, at, sums[r].state, column == 0);
#pragma unroll
    for (int j = 0; j < kQuadsOfLane; ++j) store_columns(params, s.seq, at, column + 128 * j, sums[r].o[j], end);
  }
}

// Returns how many blocks of the second launch each range has. All blocks are dealt out, so that a short call with few
// ranges uses them too. A block may then need only one pass over its columns; passes follow one another, and each takes
// as long as memory takes to answer.
__device__ inline int blocks_of_range(const Ranges& ranges) {
  return max(1, static_cast<int>(gridDim.x) / (ranges.count * kSides));
}

// Block number `block` of the `blocks` of range `range` does its share of the tile.
__device__ inline void combine_tile(const KernelParams& params, const float* all_parts, const SplitTile& s, int range,
                                    int block, int blocks) {
  constexpr int kQuads = config.head_dim_v / 4;
  if (s.ranges <= 1) return;          // One block had all keys, and has stored the tile.
  if (range < s.first_range) return;  // This range only has steps that lead into the tile.
  const TileParts parts(s, all_parts);
  const int shares = s.ranges * blocks, number = (range - s.first_range) * blocks + block;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (kWarpsHaveRows && s.ranges <= kMostPartsOfWarp) {
    const int step = shares * (kCombineThreads / 32);
#pragma unroll 1
    for (int row = number * (kCombineThreads / 32) + warp; row < s.rows; row += kRowsAtATime * step)
      add_rows(params, parts, s, row, step);
    return;
  }
  const int all = s.rows * kQuads, share = (all + shares - 1) / shares;
  const int begin = number * share, end = min(begin + share, all);
  // One thread adds up all parts of its columns: columns are more than threads.
  if (s.ranges <= kMostOfThread) {
#pragma unroll 1
    for (int quad = begin + static_cast<int>(threadIdx.x); quad < end; quad += kCombineThreads) {
      const int row = quad / kQuads, column = quad % kQuads * 4;
      store_quad(params, s.seq, s.row_lo + row, column, add_parts<1>(parts, row, column, 0));
    }
    return;
  }
#pragma unroll 1
  for (int first = begin + warp * kColumnLanes; first < end; first += kCombineThreads / 32 * kColumnLanes) {
    const int quad = first + lane % kColumnLanes, inside = min(quad, end - 1);
    const int row = inside / kQuads, column = inside % kQuads * 4;
    const Quad sum = add_lanes(add_parts<32 / kColumnLanes>(parts, row, column, lane / kColumnLanes));
    if (lane < kColumnLanes && quad < end) store_quad(params, s.seq, s.row_lo + row, column, sum);
  }
}

// Stores rows of sequences in which no key is seen, and which belong to no range. With accumulate they keep their
// earlier results.
__device__ inline void store_empty(const KernelParams& params, const Sequence& seq) {
  if constexpr (config.accumulate) return;
  constexpr int kQuads = config.head_dim_v / 4;
  Quad nothing;
  nothing.clear();
#pragma unroll 1
  for (int hk = 0; hk < config.heads_kv; ++hk) {
    Sequence of_head = seq;
    of_head.hk = hk;
#pragma unroll 1
    for (int i = threadIdx.x; i < seq.q_len * kGroup * kQuads; i += kCombineThreads)
      store_quad(params, of_head, i / kQuads, i % kQuads * 4, nothing);
  }
}

__device__ inline void store_all_empty(const KernelParams& params) {
#pragma unroll 1
  for (int b = blockIdx.x; b < params.batch; b += gridDim.x) {
    const Sequence seq = sequence_of(params, b, 0);
    if (tiles_of(params, seq).steps(0) == 0) store_empty(params, seq);
  }
}

// With fixed parts: adds up all parts of four columns of a row, one after the other. The loads of many parts are under
// way together.
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

// Combines fixed parts; each block has some columns of the rows of a query.
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
    if (q >= seq.q_len || count == 1) continue;  // If there is one part, its block has stored the row.
    Quad sum;
    sum.clear();
    if (count > 0) {
      const int first = first_part_of(params, b, row / kTileRows, seq.hk);
      sum = add_fixed_parts(parts + static_cast<Int64>(first) * kPartFloats, count, row % kTileRows, column);
    }
    store_quad(params, seq, row, column, sum);
  }
}

// This launch may begin while the first launch ends, so it finds its work before it waits.
__device__ inline void decode_combine(const KernelParams& params, const float* parts) {
  if constexpr (kFixedParts) {
    wait_for_launch_before();
    return combine_fixed_parts(params, parts);
  }
  extern __shared__ int scratch[];
  const Steps steps = count_steps<kCombineThreads>(params, scratch);
  if (!kSameSteps || steps.keys == 0) store_all_empty(params);
  const Ranges ranges = ranges_of(params, steps);
  const int blocks = blocks_of_range(ranges), count = steps.keys == 0 ? 0 : ranges.count * kSides * blocks;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const int of_range = i / blocks, range = of_range / kSides, side = of_range % kSides;
    const auto find = [&](int step) {
      return split_tile_at(params, ranges, step, cursor_at<kCombineThreads>(params, step, 0, scratch), side);
    };
    const SplitTile first = find(ranges.begin(range)), last = find(ranges.begin(range + 1) - 1);
    wait_for_launch_before();
// One copy of the code serves both tiles, because code that runs for the first time comes from memory.
#pragma unroll 1
    for (SplitTile tile = first;; tile = last) {
      combine_tile(params, parts, tile, range, i % blocks, blocks);
      if (tile.begin == last.begin) break;
    }
  }
  wait_for_launch_before();  // A block that adds nothing up must not end before the first launch, either.
}

}  // namespace flashjit
