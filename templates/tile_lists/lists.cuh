// The last launch for lists of tiles decides for each pair of tiles whether it has to be visited, and masked.
#pragma once

#include "templates/tile_lists/bounds.cuh"
#include "variant.gen.cuh"

namespace flashjit {

enum class TileState { empty, mixed, full };

// A tile, and all that is known of it before the others of its list are examined.
template <Along along>
struct ListRow {
  static constexpr bool kKeys = along == Along::keys;
  using Axis = TileAxis<along>;

  const KernelParams& params;
  const Sequence& seq;
  const ReadBounds *own, *bounds;
  const unsigned char* answers;
  int tile, lo, hi;  // The tile's number, and its first and last position.
  int begin, end, full_begin, full_end;

  // The ends of tiles may tell more than the contents of tensors.
  __device__ void find_limits() {
    if constexpr (kKeys) {
      begin = Variant::kv_begin(params, seq, lo, hi), end = Variant::kv_end(params, seq, lo, hi);
      full_begin = Variant::full_begin(params, seq, lo, hi), full_end = Variant::full_end(params, seq, lo, hi);
    } else {
      begin = Variant::q_begin(params, seq, lo, hi), end = Variant::q_end(params, seq, lo, hi);
      full_begin = Variant::full_q_begin(params, seq, lo, hi), full_end = Variant::full_q_end(params, seq, lo, hi);
    }
  }

  __device__ const ReadBounds* bounds_at(int number) const {
    const Int64 at = Axis::number_of(params, seq.b, number);
    return bounds + (at * config.list_heads + (config.list_heads > 1 ? seq.h : 0)) * kTileValues<along>;
  }

  __device__ TileState state(int number) const {
    const int first = number * Axis::kTile, last = min(first + Axis::kTile, Axis::length(seq)) - 1;
    if (first > last || first >= end || last < begin) return TileState::empty;
    const int q_lo = kKeys ? lo : first, q_hi = kKeys ? hi : last, k_lo = kKeys ? first : lo, k_hi = kKeys ? last : hi;
    const ReadBounds *there = bounds_at(number), *of_queries = kKeys ? own : there, *of_keys = kKeys ? there : own;
    const unsigned char* asked = nullptr;
    if constexpr (TilePairs::kConditions > 0) {
      const int head = config.list_heads > 1 ? seq.h : 0;
      asked = answers +
              pair_of_tiles(params, seq.b, head, kKeys ? tile : number, kKeys ? number : tile) * TilePairs::kConditions;
    }
    if (!Variant::may_see(params, seq, q_lo, q_hi, k_lo, k_hi)) return TileState::empty;
    if (!TilePairs::sees(params, seq, of_queries, of_keys, asked, q_lo, q_hi, k_lo, k_hi)) return TileState::empty;
    // Keys behind the last one must be hidden, and a score of queries there may be no number.
    const bool row_is_whole = kKeys || hi - lo == TileAxis<other(along)>::kTile - 1;
    if (last - first < Axis::kTile - 1 || !row_is_whole) return TileState::mixed;
    if (first >= full_begin && last < full_end) return TileState::full;
    return TilePairs::full(params, seq, of_queries, of_keys, asked, q_lo, q_hi, k_lo, k_hi) ? TileState::full
                                                                                            : TileState::mixed;
  }
};

// The number of threads before this one, and in the whole block, that have a full tile, and that have a mixed one: in
// the lower and the upper half of a word. All threads get theirs at the same time.
struct Ranked {
  u32 before, all;
};
__device__ inline u32 full_and_mixed(u32 full, u32 mixed) { return full | mixed << 16; }
__device__ inline Ranked rank_among_block(TileState state, u32* of_warps) {
  const u32 full = __ballot_sync(0xffffffff, state == TileState::full),
            mixed = __ballot_sync(0xffffffff, state == TileState::mixed);
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, lower = (1u << lane) - 1;
  __syncthreads();  // The counts of the last call have been read.
  if (lane == 0) of_warps[warp] = full_and_mixed(__popc(full), __popc(mixed));
  __syncthreads();
  Ranked ranked = {full_and_mixed(__popc(full & lower), __popc(mixed & lower)), 0};
#pragma unroll
  for (int i = 0; i < kListThreads / 32; ++i) {
    ranked.before += i < warp ? of_warps[i] : 0;
    ranked.all += of_warps[i];
  }
  return ranked;
}

// The states of a thread's tiles. A word has room for some of them, which are found once; the others are found again.
template <Along along>
struct KeptStates {
  static constexpr int kKept = 16;
  const ListRow<along>& row;
  u32 kept = 0;

  __device__ TileState find(int round) {
    const TileState state = row.state(round * kListThreads + static_cast<int>(threadIdx.x));
    if (round < kKept) kept |= static_cast<u32>(state) << 2 * round;
    return state;
  }
  __device__ TileState find_again(int round) const {
    if (round < kKept) return static_cast<TileState>(kept >> 2 * round & 3);
    return row.state(round * kListThreads + static_cast<int>(threadIdx.x));
  }
};

// Each block makes a list.
template <Along along>
__device__ inline void write_tile_lists(const KernelParams& params, const ReadBounds* bounds = nullptr,
                                        const unsigned char* answers = nullptr) {
  using OfRow = TileAxis<other(along)>;
  const int number = blockIdx.x / config.list_heads, head = blockIdx.x % config.list_heads;
  const auto [b, tile] = OfRow::tile_of(params, number);
  const Sequence seq = sequence_of(params, b, head);
  const int lo = tile * OfRow::kTile, end = min(lo + OfRow::kTile, OfRow::length(seq));
  if (lo >= end) return;
  extern __shared__ __align__(16) unsigned char list_memory[];
  ReadBounds* const own = reinterpret_cast<ReadBounds*>(list_memory);
  u32* const of_warps = reinterpret_cast<u32*>(own + kMostTileValues);
  static_assert(kTileValues<other(along)> <= kMostTileValues);
  if (threadIdx.x < 32 && has_pairs(seq)) find_bounds<other(along)>(params, seq, lo, end, own);
  __syncthreads();
  ListRow<along> row = {params, seq, own, bounds, answers, tile, lo, end - 1};
  row.find_limits();

  const int thread = threadIdx.x;
  const int tiles = (TileAxis<along>::length(seq) + TileAxis<along>::kTile - 1) / TileAxis<along>::kTile;
  const int rounds = (tiles + kListThreads - 1) / kListThreads;
  KeptStates<along> states = {row};
  int full = 0;
  for (int round = 0; round < rounds; ++round) full += __syncthreads_count(states.find(round) == TileState::full);
  int* const list = list_of<along>(params, seq, tile);
  int at_full = kListCounts, at_mixed = kListCounts + full;
  for (int round = 0; round < rounds; ++round) {
    const TileState state = states.find_again(round);
    const Ranked ranked = rank_among_block(state, of_warps);
    if (state == TileState::full) list[at_full + (ranked.before & 0xffff)] = round * kListThreads + thread;
    if (state == TileState::mixed) list[at_mixed + (ranked.before >> 16)] = round * kListThreads + thread;
    at_full += static_cast<int>(ranked.all & 0xffff);
    at_mixed += static_cast<int>(ranked.all >> 16);
  }
  if (thread == 0) {
    list[0] = at_mixed - kListCounts;
    list[1] = full;
  }
}

}  // namespace flashjit
