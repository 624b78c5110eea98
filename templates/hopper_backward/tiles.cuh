// The query tiles of all heads, and their offsets in the workspace.
#pragma once

#include "templates/hopper_backward/layout.h"
#include "templates/sequence.cuh"

namespace flashjit {

constexpr bool kPacked = kRows == Rows::packed;
// Where dS may be kept, the warp that would set unvisited gradients to zero has another task, and the last launch writes all.
constexpr bool kLoopZeroes = zeroes_unvisited(config) && !config.hopper_backward.keeps_ds;

// The number of a query tile of a head among those of all: where its part of the workspace is.
__device__ inline Int64 workspace_tile(const KernelParams& params, const Sequence& seq, int head, int tile) {
  if constexpr (kPacked)
    return static_cast<Int64>(head) * params.tiles_q + static_cast<int>(seq.q_token) / config.tile_q + seq.b + tile;
  return (static_cast<Int64>(seq.b) * config.heads_q + head) * params.tiles_q + tile;
}

// Tiles of a head are worked on one after the other, so that what runs together shares in L2 what it reads and adds to.
// Where tiles have unequal work, heads are taken in groups that stay in L2 together, and a tile of all of these goes before
// the next: with a causal mask the first tile has most queries, and what is left for the end is short.
// Most kernels gain by it; d=64, and d=256 with a launch for dQ, lose [M88].
// Where batch indices share elements of a score's tensors, and of their gradients, L2 has them for all batch indices if
// the same head of all batch indices is taken together.
constexpr bool kBatchesTogether = config.inputs_of_batches && !kPacked;
// Sums in order want few tiles of a head at work: each comes behind the one before it. Lists that all heads share are of very
// different lengths.
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

// Says how many tiles of keys of a KV head are done.
__device__ inline int* done_of(const Sequence& seq, int* counters) {
  return counters + seq.b * config.heads_kv + seq.hk;
}

// Sums of dQ are set to zero by the loop itself, so that they are in L2 when they are added to: each item does that for
// its share of the query tiles of an item so far behind it that it is done in time; what is left for the first launch
// are those of the first items. Shares of a group of heads are those of its items.
constexpr bool kZeroesAhead = counts_items(config) && !kBatchesTogether;
constexpr int kItemsAtOnce =
    144 * backward_blocks_of_sm(config);  // as many as any device works on at a time; more, and zeros do not stay in L2
struct Ahead {
  int of_head, items, group;  // of a head, of all, of a group of heads
  int ahead;                  // from an item to that whose share it has

  __device__ explicit Ahead(const KernelParams& params)
      : of_head(key_tiles(params)),
        items(heads_with_keys(params) * of_head),
        group(in_a_group(params, params.heads_per_group / group_size(config)) * of_head),
        ahead(group + kItemsAtOnce) {}
  // The first query tile of an item's share; of the item after the last, their number.
  __device__ int first_tile(const KernelParams& params, int item) const {
    const int tiles = group_size(config) * params.tiles_q, each = (tiles + of_head - 1) / of_head;
    return item / of_head * tiles + min(item % of_head * each, tiles);
  }
  // Says how many items of a group have shares that other items set to zero.
  __device__ int shares_of(int of_group) const {
    return max(0, min((of_group + 1) * group, items) - max(of_group * group, ahead));
  }
};
// Where items come from no counter, one could wait for another that has not begun; and without queries no launch has been
// there that sets counters to zero.
// Calls whose items are cut have few.
__device__ inline bool zeroes_ahead(const KernelParams& params) {
  return params.work_counters && params.tiles_q > 0 && params.parts == 1;
}
// The counter of a group of heads that says how many shares have been set to zero.
template <class Counter>
__device__ inline Counter* zeroed_of(const KernelParams& params, int of_group, Counter* counters) {
  return counters + heads_with_keys(params) + of_group;
}

// The launches before and after the loop take the last number first: the loop begins with the first heads, and L2 still
// has what was written last.
__device__ inline int last_first() { return static_cast<int>(gridDim.x - 1 - blockIdx.x); }

// The tile of a number. With packed sequences it may lie behind the end of its sequence.
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
