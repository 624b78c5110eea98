// Query tiles of all heads, and their offsets in the workspace.
#pragma once

#include "templates/hopper_backward/layout.h"
#include "templates/sequence.cuh"

namespace flashjit {

constexpr bool kPacked = kRows == Rows::packed;
// Where dS may be kept, the warp that would set unvisited gradients to zero has another task, and the last launch
// writes all gradients.
constexpr bool kLoopZeroes = zeroes_unvisited(config) && !config.hopper_backward.keeps_ds;

// Returns the number of a head's query tile among all query tiles, which gives its place in the workspace.
__device__ inline Int64 workspace_tile(const KernelParams& params, const Sequence& seq, int head, int tile) {
  if constexpr (kPacked)
    return static_cast<Int64>(head) * params.tiles_q + static_cast<int>(seq.q_token) / config.tile_q + seq.b + tile;
  return (static_cast<Int64>(seq.b) * config.heads_q + head) * params.tiles_q + tile;
}

// Tiles of a head are worked on one after the other, so that blocks that run at the same time share in L2 what they
// read and add to. Where tiles have unequal work, heads are taken in groups that stay in L2 together, and one tile of
// all heads of a group goes before the next tile: with a causal mask the first tile has the most queries, and the work
// left for the end is short. Most kernels gain by this; d=64, and d=256 with a launch for dQ, lose [M88].
//
// Where batch indices share elements of a score's tensors and of their gradients, the same head of all batch indices is
// taken together, so that L2 holds these elements for all of them.
constexpr bool kBatchesTogether = config.inputs_of_batches && !kPacked;
// True if heads are taken in such groups. Sums in order want few tiles of a head at work, because each waits for the
// one before it. Lists that all heads share have very different lengths.
constexpr bool kUneven = kPacked || adds_in_order(config) || config.list_heads == 1 ||
                         (config.has_mask && config.tile_q == 64 && config.hopper_backward.dq == DqSums::atomics);
__device__ inline int in_a_group(const KernelParams& params, int heads_together) {
  const int group = kUneven ? heads_together : 1;
  if constexpr (kBatchesTogether) return max(group / params.batch, 1) * params.batch;
  return group;
}

// ---- what the launches tell each other: counters, of dense sequences alone ----

__device__ inline int key_tiles(const KernelParams& params) {
  return (params.k_len + config.tile_kv - 1) / config.tile_kv;
}
__device__ inline int heads_with_keys(const KernelParams& params) { return config.heads_kv * params.batch; }

// Returns the counter of the finished tiles of keys of a KV head.
__device__ inline int* done_of(const Sequence& seq, int* counters) {
  return counters + seq.b * config.heads_kv + seq.hk;
}

// The loop sets sums of dQ to zero itself, so that they are in L2 when it adds to them. Each item clears a share of
// query tiles for an item so far behind it that this is done in time. The first launch clears the shares of the first
// items. The items of a group of heads share the tiles of that group.
constexpr bool kZeroesAhead = counts_items(config) && !kBatchesTogether;
constexpr int kItemsAtOnce =
    // It is the largest number that any device works on at a time. With more, the zeros do not stay in L2.
    144 * backward_blocks_of_sm(config);
struct Ahead {
  int of_head, items, group;  // They count the items of a head, of the call, and of a group of heads.
  int ahead;                  // How far the item whose share is cleared lies behind the clearing item.

  __device__ explicit Ahead(const KernelParams& params)
      : of_head(key_tiles(params)),
        items(heads_with_keys(params) * of_head),
        group(in_a_group(params, params.heads_per_group / group_size(config)) * of_head),
        ahead(group + kItemsAtOnce) {}
  // Returns the first query tile of an item's share, or, for the item after the last one, the number of tiles.
  __device__ int first_tile(const KernelParams& params, int item) const {
    const int tiles = group_size(config) * params.tiles_q, each = (tiles + of_head - 1) / of_head;
    return item / of_head * tiles + min(item % of_head * each, tiles);
  }
  // Returns how many items of a group have shares that other items set to zero.
  __device__ int shares_of(int of_group) const {
    return max(0, min((of_group + 1) * group, items) - max(of_group * group, ahead));
  }
};
// Items that do not come from a counter could wait for one that has not begun. Without queries, no launch has set the
// counters to zero. Calls whose items are cut have few items.
__device__ inline bool zeroes_ahead(const KernelParams& params) {
  return params.work_counters && params.tiles_q > 0 && params.parts == 1;
}
// Returns the counter of a group of heads that counts the shares set to zero.
template <class Counter>
__device__ inline Counter* zeroed_of(const KernelParams& params, int of_group, Counter* counters) {
  return counters + heads_with_keys(params) + of_group;
}

// Returns the block's number, counted from the last one. The launches before and after the loop take the last number
// first: the loop begins with the first heads, and L2 still has what was written last.
__device__ inline int last_first() { return static_cast<int>(gridDim.x - 1 - blockIdx.x); }

// The tile that has this number. With packed sequences it may lie behind the end of its sequence.
struct QueryTile {
  Sequence seq;
  int tile;
};
__device__ inline QueryTile query_tile(const KernelParams& params, int number) {
  const int at = number % params.tiles_q, head = number / params.tiles_q;
  if constexpr (kPacked) {
    const NumberedTile numbered = numbered_tile(params.offsets_q, params.batch, config.tile_q, at);
    return {sequence_of(params, numbered.b, head), numbered.tile};
  }
  return {sequence_of(params, head / config.heads_q, head % config.heads_q), at};
}

}  // namespace flashjit
