// How the work of a call is dealt out. A step is a KV tile of a row tile of a KV head. All steps of the call, one
// sequence after the other, are cut into as many ranges of the same length as there are blocks for; each block works on
// one, in segments: what of its range belongs to one row tile. So blocks are done at the same time, however uneven the
// lengths. Which ranges a tile falls into follows from the lengths and the number of blocks alone.
#pragma once

#include "templates/decode/layout.h"
#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr DecodeLayout kLayout = decode_layout(config);
constexpr int kThreads = decode_threads(config);
constexpr int kTileRows = config.tile_q, kTileKv = config.tile_kv;
constexpr int kGroup = group_size(config);
constexpr int kSideBySide = heads_side_by_side(config), kHeadRounds = config.heads_kv / kSideBySide;

// What the row tiles of all heads of a sequence have in common.
struct Tiles {
  int first, count;  // KV tiles that some query sees
  int row_tiles;
  __device__ int steps() const { return count * row_tiles * kHeadRounds; }  // of the heads that a block sees
};

__device__ inline Tiles tiles_of(const KernelParams& p, const Sequence& seq) {
  const int last_q = seq.q_len - 1;
  if (last_q < 0) return {0, 0, 0};
  const int begin = Variant::kv_begin(p, seq, 0, last_q), end = Variant::kv_end(p, seq, 0, last_q);
  const int first = begin / kTileKv;
  return {first, begin < end ? (end - 1) / kTileKv - first + 1 : 0, (seq.q_len * kGroup + kTileRows - 1) / kTileRows};
}

__device__ inline Tiles tiles_of(const KernelParams& p, int b) { return tiles_of(p, sequence_of(p, b, 0)); }

// All sequences have as many steps: nothing has to be added up.
constexpr bool kSameSteps = kRows != Rows::packed && !config.k_lens && !config.ranges_differ;

// A step of a sequence, counted from its first.
struct Place {
  int b, step;
};

// Steps of the whole call.
template <int threads>
__device__ inline int count_steps(const KernelParams& p, int* scratch) {
  if constexpr (kSameSteps) return tiles_of(p, 0).steps() * p.batch;
  int steps = 0;
  for (int b = threadIdx.x; b < p.batch; b += threads) steps += tiles_of(p, b).steps();
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) steps += __shfl_xor_sync(0xffffffff, steps, lanes);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = steps;
  __syncthreads();
  steps = 0;
  for (int warp = 0; warp < threads / 32; ++warp) steps += scratch[warp];
  __syncthreads();  // everybody has read
  return steps;
}

// The sequence that a step of the call belongs to. There is one.
template <int threads>
__device__ inline Place place_of(const KernelParams& p, int step, int* scratch) {
  if constexpr (kSameSteps) {
    if (p.batch == 1) return {0, step};
    const int steps = tiles_of(p, 0).steps();
    return {step / steps, step % steps};
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Place* found = reinterpret_cast<Place*>(scratch + 32);
  for (int first = 0, passed = 0;; first += threads) {
    const int b = first + threadIdx.x;
    const int own = b < p.batch ? tiles_of(p, b).steps() : 0;
    int sum = own;  // of this lane and those before
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int other = __shfl_up_sync(0xffffffff, sum, lanes);
      if (lane >= lanes) sum += other;
    }
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    int before = passed + sum - own;
    for (int i = 0; i < threads / 32; ++i) {
      if (i < warp) before += scratch[i];
      passed += scratch[i];
    }
    if (step >= before && step < before + own) *found = {b, step - before};
    __syncthreads();
    if (step >= passed) continue;
    const Place place = *found;
    __syncthreads();  // everybody has read
    return place;
  }
}

// The cut into ranges; the first `longer` of them have a step more.
struct Ranges {
  int count, steps, longer;
  __device__ int begin(int range) const { return range * steps + min(range, longer); }
  __device__ int of(int step) const {
    const int of_longer = longer * (steps + 1);
    return step < of_longer ? step / (steps + 1) : longer + (step - of_longer) / steps;
  }
};

// No more ranges than give each warp of a block a step.
__device__ inline Ranges ranges_of(const KernelParams& p, int steps) {
  const int count = max(1, min(p.blocks / kSideBySide, steps / config.warps));
  return {count, steps / count, steps % count};
}

// The parts that a block leaves of tiles which are not its alone: of the one that its range begins with, and of another.
__device__ inline int part_of(int range, int side, bool begins_range) {
  return (range * kSideBySide + side) * kPartsPerBlock + (begins_range ? 0 : 1);
}

// What a block does of a row tile.
struct Segment {
  Sequence seq;               // h: the first head of the group
  int row_lo;                 // its first row: query * group + head of the group
  int first_tile, last_tile;  // visited from the first to the last
  int full_begin, full_end;   // keys in between are visible to every query
  int end;                    // keys from here on are visible to none; not below 1
  int part;                   // -1: the whole tile
  int steps;

  __device__ int q_lo() const { return row_lo / kGroup; }
  __device__ int q_hi() const { return min(row_lo + kTileRows - 1, seq.q_len * kGroup - 1) / kGroup; }
};

// A row tile, and how many of its steps lie before a place.
struct RowTile {
  Sequence seq;  // h: the first head of the group
  int row_lo, passed;
};
__device__ inline RowTile row_tile_at(const KernelParams& p, const Tiles& tiles, Place at, int side) {
  int head_round = 0, row_tile = 0, passed = at.step;
  if (at.step >= tiles.count) {  // no division where there is one tile, as mostly
    const int number = at.step / tiles.count;
    passed = at.step % tiles.count;
    head_round = number / tiles.row_tiles;
    row_tile = number % tiles.row_tiles;
  }
  return {sequence_of(p, at.b, (head_round * kSideBySide + side) * kGroup), row_tile * kTileRows, passed};
}

// From this place on, `left` steps at most.
__device__ inline Segment segment_at(const KernelParams& p, Place at, int left, int range, int side,
                                     bool begins_range) {
  const Tiles tiles = tiles_of(p, at.b);
  const RowTile tile = row_tile_at(p, tiles, at, side);
  Segment s;
  s.seq = tile.seq;
  s.row_lo = tile.row_lo;
  s.steps = min(tiles.count - tile.passed, left);
  s.first_tile = tiles.first + tile.passed;
  s.last_tile = s.first_tile + s.steps - 1;
  s.full_begin = Variant::full_begin(p, s.seq, s.q_lo(), s.q_hi());
  s.full_end = Variant::full_end(p, s.seq, s.q_lo(), s.q_hi());
  s.end = max(1, min(Variant::kv_end(p, s.seq, s.q_lo(), s.q_hi()), s.seq.k_len));
  s.part = s.steps == tiles.count ? -1 : part_of(range, side, begins_range);
  return s;
}

// The place after a segment. There is one.
__device__ inline Place place_after(const KernelParams& p, Place at, int steps) {
  at.step += steps;
  if (at.step < tiles_of(p, at.b).steps()) return at;
  at.step = 0;
  do {
    ++at.b;
  } while (tiles_of(p, at.b).steps() == 0);
  return at;
}

}  // namespace flashjit
