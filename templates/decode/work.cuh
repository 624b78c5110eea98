// Deals out the work of a call. A step is a KV tile of a row tile of a KV head. All steps of the call, one sequence
// after the other, are cut into ranges of the same length, as many as there are blocks for. Each block works on one
// range, in segments: the steps of its range that belong to one row tile. So blocks are done at the same time, however
// uneven the lengths are. The lengths and the number of blocks alone determine which ranges a tile falls into.
//
// Row tiles may belong to teams instead: clusters of blocks, or single blocks, that have all keys of a row tile.
//
// With fixed parts a step is a part: a number of KV tiles that follows from the length of the sequence. The result of a
// part then depends neither on what else is in the call, nor on which block computes it.
#pragma once

#include "templates/decode/layout.h"
#include "templates/hopper/device.cuh"
#include "templates/sequence.cuh"
#include "variant.gen.cuh"

namespace flashjit {

constexpr int kTileRows = config.tile_q, kTileKv = config.tile_kv;
constexpr int kGroup = group_size(config);
constexpr bool kFixedParts = config.decode.fixed_parts;
constexpr bool kHasTeams = config.decode.team > 1;
constexpr int kSideBySide = heads_side_by_side(config), kHeadRounds = config.heads_kv / kSideBySide;
constexpr int kSides = sides(config);

// Chooses one of two types.
template <bool first, class A, class B>
struct Either {
  using type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using type = B;
};

// Facts that the row tiles of all heads of a sequence have in common.
struct Tiles {
  int first, count;  // The KV tiles that some query sees.
  int row_tiles;     // The number of row tiles, one after the other.
  int shift = 0;     // A step has this power of two KV tiles.
  __device__ int row_steps() const {
    return kFixedParts ? (count + (1 << shift) - 1) >> shift : count;
    // The steps of a row tile.
  }
  // Returns the number of row tiles of a sequence that have keys, for all heads that a block visits.
  __device__ int all_row_tiles() const { return count > 0 ? row_tiles * kHeadRounds : 0; }
  // Returns the number of steps of these row tiles, including those that lead into each of them.
  __device__ int steps(int lead) const { return (row_steps() + lead) * all_row_tiles(); }
};

// Returns the number of KV tiles of a part, as a power of two. Packed sequences may be longer than the call promised,
// and nobody has checked; there is room for no more parts.
__device__ inline int shift_of_part(const KernelParams& p, int count) {
  constexpr int kTileShift = bit_length(kTileKv) - 1;
  // All blocks compute this before they load keys: bit_length, which the host takes, would be twenty instructions.
  int shift = part_shift_of_log(config, 32 - __clz(max(count * kTileKv, 1) - 1)) - kTileShift;
  if constexpr (kKeyRows == Rows::packed) {
    while (count >> shift >= most_parts(config, p.k_len)) ++shift;
  }
  return shift;
}

__device__ inline Tiles tiles_of(const KernelParams& p, const Sequence& of_head) {
  Sequence seq = of_head;
  const int last_q = seq.q_len - 1;
  if (last_q < 0) return {0, 0, 0};
  if (kChosen && config.heads_kv > 1 && p.key_count) seq.k_len = longest_list(p, seq);
  const int begin = Variant::kv_begin(p, seq, 0, last_q), end = Variant::kv_end(p, seq, 0, last_q);
  const int first = begin / kTileKv;
  Tiles tiles = {first, begin < end ? (end - 1) / kTileKv - first + 1 : 0,
                 config.decode.row_tiles > 1 ? 1 : (seq.q_len * kGroup + kTileRows - 1) / kTileRows};
  if constexpr (kFixedParts) tiles.shift = shift_of_part(p, tiles.count);
  return tiles;
}

__device__ inline Tiles tiles_of(const KernelParams& p, int b) { return tiles_of(p, sequence_of(p, b, 0)); }

// True if all sequences have the same number of steps, so that nothing has to be added up.
constexpr bool kSameSteps = kRows != Rows::packed && !config.k_lens && !kChosen && !config.ranges_differ;

// A block's position in the steps of a call: a step of a sequence, counted from the sequence's first.
struct Cursor {
  int b, step;
};

// Returns the sum of all threads' numbers to all of them.
template <int threads>
__device__ inline int sum_of_threads(int own, int* scratch) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) own += __shfl_xor_sync(0xffffffff, own, lanes);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = own;
  __syncthreads();
  int sum = 0;
  for (int warp = 0; warp < threads / 32; ++warp) sum += scratch[warp];
  __syncthreads();  // All threads have read the scratch.
  return sum;
}

// Counts the steps of the whole call, without those that lead into row tiles, and the row tiles, where steps lead into
// them.
constexpr bool kPartsAreLarge = config.tile_q >= kRowsOfLargePart;
struct Steps {
  int keys, row_tiles;
};
template <int threads>
__device__ inline Steps count_steps(const KernelParams& p, int* scratch) {
  if constexpr (kSameSteps) {
    const Tiles tiles = tiles_of(p, 0);
    return {tiles.steps(0) * p.batch, tiles.all_row_tiles() * p.batch};
  }
  Steps own = {0, 0};
  for (int b = threadIdx.x; b < p.batch; b += threads) {
    const Tiles tiles = tiles_of(p, b);
    own.keys += tiles.steps(0);
    own.row_tiles += tiles.all_row_tiles();
  }
  return {sum_of_threads<threads>(own.keys, scratch),
          kPartsAreLarge ? sum_of_threads<threads>(own.row_tiles, scratch) : 0};
}

// Returns the sequence that a step of the call belongs to, and the step in it. The call must have the step.
template <int threads>
__device__ inline Cursor cursor_at(const KernelParams& p, int step, int lead, int* scratch) {
  if constexpr (kSameSteps) {
    if (p.batch == 1) return {0, step};
    const int steps = tiles_of(p, 0).steps(lead);
    return {step / steps, step % steps};
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Cursor* found = reinterpret_cast<Cursor*>(scratch + 32);
  for (int first = 0, passed = 0;; first += threads) {
    const int b = first + threadIdx.x;
    const int own = b < p.batch ? tiles_of(p, b).steps(lead) : 0;
    int sum = own;  // The sum of this lane and of the lanes before.
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
    const Cursor cursor = *found;
    __syncthreads();  // All threads have read the cursor.
    return cursor;
  }
}

// The cut into ranges; the first `longer` of them have one step more. `lead` steps without keys lead into each row
// tile.
struct Ranges {
  int count, steps, longer, lead;
  __device__ int begin(int range) const { return range * steps + min(range, longer); }
  __device__ int of(int step) const {
    const int of_longer = longer * (steps + 1);
    return step < of_longer ? step / (steps + 1) : longer + (step - of_longer) / steps;
  }
};

// Returns the ranges of a call. Where warps take tiles by themselves, there are at most as many ranges as give each
// warp of a block a tile.
__device__ inline Ranges ranges_of(const KernelParams& p, const Steps& all) {
  const int most = p.blocks / (kSides * config.decode.cluster);
  RangeCut cut = {max(1, min(most, kFixedParts ? all.keys : all.keys / max(config.decode.warps, 1))), 0};
  if constexpr (kPartsAreLarge && !kFixedParts) cut = cut_of_large_parts(tiles_of(p, 0).count, all.keys, most);
  const int steps = all.keys + cut.lead * all.row_tiles;
  return {cut.count, steps / cut.count, steps % cut.count, cut.lead};
}

// Returns where a block stores a part of a tile that others share: either of the tile that its range begins with, or of
// another tile.
__device__ inline int part_of(int range, int side, bool begins_range) {
  return (range * kSides + side) * kPartsPerBlock + (begins_range ? 0 : 1);
}

// Returns the number of the first fixed part of a row tile; each fixed part has a number of its own. It is computed
// only once there are parts, because it would delay the first loads of keys.
__device__ inline int first_part_of(const KernelParams& p, int b, int row_tile, int hk) {
  const int row_tiles = (p.q_len * kGroup + kTileRows - 1) / kTileRows;
  return ((b * row_tiles + row_tile) * config.heads_kv + hk) * most_parts(config, p.k_len);
}

// The steps of a row tile that a block does.
struct Segment {
  Sequence seq;               // `h` is the first head of the group.
  int row_lo;                 // The segment's first row: query * group + head of the group.
  int first_tile, last_tile;  // Tiles are visited from the first to the last.
  int sharing = 0;            // This power of two of blocks take the tiles of their warps by turns.
  int last_of_part;           // With fixed parts: the last tile of the part that comes next.
  int part_tiles;
  int full_begin, full_end;  // Keys in between are visible to every query.
  int end;                   // Keys from here on are visible to no query; it is at least 1.
  int part;         // -1 means the whole tile. With fixed parts it is 0, and first_part_of() returns where they are.
  int part_number;  // With fixed parts: the part's number in the row tile.
  int steps;

  // Continues with the next fixed part, if there is one.
  __device__ bool next_part() {
    if (!kFixedParts || last_of_part >= last_tile) return false;
    ++part_number;
    last_of_part = min(last_of_part + part_tiles, last_tile);
    return true;
  }
  __device__ int q_lo() const { return row_lo / kGroup; }
  __device__ int q_hi() const { return min(row_lo + kTileRows - 1, seq.q_len * kGroup - 1) / kGroup; }
};

// Returns the number of a segment's first part.
__device__ inline Int64 first_part_of(const KernelParams& p, const Segment& s) {
  return kFixedParts ? first_part_of(p, sequence_number(p, s.seq), s.row_lo / kTileRows, s.seq.hk) : s.part;
}

__device__ inline int rows_of(const Segment& s) { return min(kTileRows, s.seq.q_len * kGroup - s.row_lo); }

// A row tile, and how many of its steps lie before a cursor. The steps that lead into it come first.
struct RowTile {
  Sequence seq;  // `h` is the first head of the group.
  int row_lo, passed;
};
__device__ inline RowTile row_tile_at(const KernelParams& p, const Tiles& tiles, Cursor at, int side, int lead) {
  int head_round = 0, row_tile = 0, passed = at.step;
  const int row_steps = tiles.row_steps() + lead;
  // Most calls have one tile, and need no division.
  if (at.step >= row_steps) {
    const int number = at.step / row_steps;
    passed = at.step % row_steps;
    head_round = number / tiles.row_tiles;
    row_tile = number % tiles.row_tiles;
  }
  if constexpr (config.decode.row_tiles > 1) row_tile = side / kSideBySide;
  const int head = head_round * kSideBySide + side % kSideBySide;
  return {sequence_of(p, at.b, head * kGroup), row_tile * kTileRows, passed};
}

// Returns a segment of `steps` steps of a row tile, behind those that have passed. With fixed parts each part has a
// number of its own, unless the tile has only one.
__device__ inline Segment segment_of(const KernelParams& p, const Tiles& tiles, const RowTile& tile, int steps,
                                     int lead = 0) {
  Segment s;
  s.seq = tile.seq;
  s.row_lo = tile.row_lo;
  s.steps = steps;
  s.first_tile = tiles.first + (max(tile.passed - lead, 0) << tiles.shift);
  s.last_tile = min(tiles.first + (tile.passed + steps - lead << tiles.shift), tiles.first + tiles.count) - 1;
  s.part_tiles = 1 << tiles.shift;
  s.last_of_part = min(s.first_tile + s.part_tiles - 1, s.last_tile);
  s.full_begin = Variant::full_begin(p, s.seq, s.q_lo(), s.q_hi());
  s.full_end = Variant::full_end(p, s.seq, s.q_lo(), s.q_hi());
  s.end = max(1, min(Variant::kv_end(p, s.seq, s.q_lo(), s.q_hi()), s.seq.k_len));
  s.part = kFixedParts && tiles.row_steps() > 1 ? 0 : -1;
  s.part_number = tile.passed;
  return s;
}

// Returns the segment from this cursor on, with at most `left` steps.
__device__ inline Segment segment_at(const KernelParams& p, Cursor at, int left, int range, int side, int lead,
                                     bool begins_range) {
  const Tiles tiles = tiles_of(p, at.b);
  const RowTile tile = row_tile_at(p, tiles, at, side, lead);
  // O of many rows leaves no registers for an earlier part.
  const int most = kPartsAreLarge && kFixedParts ? 1 : left;
  Segment s = segment_of(p, tiles, tile, min(tiles.row_steps() + lead - tile.passed, most), lead);
  const bool whole = kPartsAreLarge ? s.last_tile - s.first_tile + 1 == tiles.count : s.steps == tiles.row_steps();
  if (!kFixedParts && !whole) s.part = part_of(range, side, begins_range);
  return s;
}

// Teams are of one, two, four or eight blocks.
__device__ inline int team_shift(const KernelParams& p) { return __ffs(p.team) - 1; }
__device__ inline int rank_in_team(const KernelParams& p) { return static_cast<int>(blockIdx.x) & (p.team - 1); }

// Finds the steps that a block does of row tile number `item`, alone or as its share in a team, which may be empty.
// Some numbers have no row tile, and neighbouring numbers have neighbouring heads. The warps of all blocks of a team
// take tiles by turns; fixed parts are dealt out as evenly.
template <bool of_team>
__device__ inline bool item_at(const KernelParams& p, int item, Segment& s) {
  const int shift = of_team ? team_shift(p) : 0, rank = of_team ? rank_in_team(p) : 0;
  // The numbers are unsigned, because signed quotients would take more instructions.
  const u32 number = item, items = p.team_items, heads = config.heads_kv;
  const u32 b = p.batch == 1 ? 0 : number / items, of_sequence = number - b * items;
  const int hk = of_sequence % heads, row_tile = of_sequence / heads;
  const Sequence seq = sequence_of(p, b, hk * kGroup);
  if (row_tile * kTileRows >= seq.q_len * kGroup) return false;
  const Tiles tiles = tiles_of(p, b);
  // The first block has some steps if there are any.
  const int all = tiles.row_steps(), up = (1 << shift) - 1;
  const int begin = kFixedParts ? all * rank + up >> shift : rank * config.decode.warps;
  const int end = kFixedParts ? all * (rank + 1) + up >> shift : all;
  s = segment_of(p, tiles, {seq, row_tile * kTileRows, begin}, end - begin);
  if (!kFixedParts) s.sharing = shift;
  return true;
}

// Finds the next row tile of a block alone, from number `item` on.
__device__ inline bool find_item(const KernelParams& p, int& item, Segment& s) {
  for (; item < p.team_items * p.batch; item += static_cast<int>(gridDim.x)) {
    if (item_at<false>(p, item, s)) return true;
  }
  return false;
}

// Prefetches the block table, or lists of pages, to L2 while lengths are loaded. The numbers of pages are loaded when
// lengths are known, and rows when page numbers are. Each thread of the call prefetches a line of memory.
template <int threads>
__device__ inline void prefetch_table(const KernelParams& p) {
  if constexpr (kKeysInPages) {
    // Calls of this kind have pages.
    constexpr int kKeysOfLine = 32 * (config.page_size > 0 ? config.page_size : 1);
    constexpr int kHeads = kKeyRows == Rows::chosen_pages || config.head_tables ? config.heads_kv : 1;
    if (kKeyRows == Rows::paged && p.table_stride_page != 1) return;
    const int lines = (p.k_len + kKeysOfLine - 1) / kKeysOfLine;
    const int line = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
    const int number = line / max(lines, 1), b = number / kHeads;
    if (b >= p.batch) return;
    Sequence seq = {b, 0, number % kHeads};
    const int* first;
    if constexpr (kKeyRows == Rows::chosen_pages) {
      find_rows(seq, p);
      first = chosen_list(p, seq);
    } else {
      first = table_line(p, seq);
    }
    prefetch_line(first + line % max(lines, 1) * 32);
  }
}

// Returns the cursor after a segment. The call must have steps left.
__device__ inline Cursor cursor_after(const KernelParams& p, Cursor at, int steps, int lead) {
  at.step += steps;
  if (at.step < tiles_of(p, at.b).steps(lead)) return at;
  at.step = 0;
  do {
    ++at.b;
  } while (tiles_of(p, at.b).steps(lead) == 0);
  return at;
}

}  // namespace flashjit
