// The work of a block of the sync family: its query tile, the KV tiles that it visits, and their way to shared memory.
#pragma once

#include "templates/dropout.cuh"
#include "templates/kv_rows.cuh"
#include "templates/sequence.cuh"
#include "templates/sync/operands.cuh"
#include "templates/tile_copy.cuh"
#include "templates/tile_lists/axis.cuh"
#include "templates/tile_walk.cuh"

namespace flashjit {

constexpr int kThreads = threads_of(config);
constexpr int kSlices = value_slices(config), kColumns = slice_columns(config);
constexpr int kTileQ = config.tile_q, kTileKv = config.tile_kv, kStages = config.stages;

constexpr bool kListed = config.list_heads > 0;  // True if lists say which tiles are visited.
template <bool listed>
struct ListOfTiles {
  __device__ int number_of(int index) const { return index; }
  __device__ void set_list(const int*) {}
};
// Tiles are then indices into a list of numbers.
template <>
struct ListOfTiles<true> {
  const int* list;
  __device__ int number_of(int index) const { return list[index]; }
  __device__ void set_list(const int* of_tile) { list = of_tile; }
};

// Values that all threads of the block agree on. They lie in shared memory and are read where they are needed, because
// registers are scarce in this kernel.
struct BlockState : ListOfTiles<kListed> {
  Sequence seq;
  const Cached* k;  // The rows of this sequence and KV head begin there: key_begin().
  const Cached* v;
  int column;                 // The first column of V and O that belongs to this block.
  int q_lo, q_hi;             // The queries of this tile.
  int first_tile, last_tile;  // KV tiles that some query can see, visited from the last to the first.
  int full_begin, full_end;   // Keys in between are visible to every query, and need no mask code.
  int end;                    // Keys from here on are visible to no query: their values are not read, NaN or not.
  float score_scale;          // The scale of the first query, where it is known only at run time.
};
static_assert(sizeof(BlockState) <= block_state_bytes(config));

// Returns the visible tile at or before `tile`, stepping over tiles in a hole of the mask. A result below first_tile
// means that none is left.
__device__ inline int visible_tile(const KernelParams& params, const BlockState& block, int tile) {
  return skip_holes<Walk::down, kTileKv>(params, block.seq, block.q_lo, block.q_hi, tile, block.first_tile);
}

__device__ inline bool is_mixed(const BlockState& block, int tile) {
  return tile * kTileKv < block.full_begin || (tile + 1) * kTileKv > block.full_end;
}

__device__ inline void set_block_state(BlockState& block, const KernelParams& params, const Sequence& seq, int q_lo) {
  const int column = min(static_cast<int>(blockIdx.x) % kSlices * kColumns, config.head_dim_v - kColumns);
  const int q_hi = min(q_lo + kTileQ, seq.q_len) - 1;
  const int begin = Variant::kv_begin(params, seq, q_lo, q_hi), end = Variant::kv_end(params, seq, q_lo, q_hi);
  block.seq = seq;
  block.k = static_cast<const Cached*>(params.k) + key_begin(params.k_stride, seq);
  block.v = static_cast<const Cached*>(params.v) + key_begin(params.v_stride, seq) + column;
  block.column = column;
  block.q_lo = q_lo;
  block.q_hi = q_hi;
  block.first_tile = begin / kTileKv;
  block.full_begin = Variant::full_begin(params, seq, q_lo, q_hi);
  block.full_end = Variant::full_end(params, seq, q_lo, q_hi);
  block.last_tile = begin < end ? (end - 1) / kTileKv : block.first_tile - 1;
  block.end = min(end, seq.k_len);
  if constexpr (kListed) {
    const int* list = list_of<Along::keys>(params, seq, q_lo / kTileQ);
    block.set_list(list + kListCounts);
    block.first_tile = 0;
    block.last_tile = list[0] - 1;
    block.full_begin = 0;  // These are the first indices, as is_mixed() counts them.
    block.full_end = list[1] * kTileKv;
  }
  if constexpr (is_scaled(config)) block.score_scale = score_scale(params, seq, q_lo);
}

// Finds the block's tile, and copies its queries. Returns false if it lies behind the last query of the sequence.
__device__ inline bool begin_tile(const KernelParams& params, BlockState& block, u32 queries) {
  const WorkItem item = work_item(params, blockIdx.x / kSlices);
  const int q_lo = item.tile * kTileQ;
  if (q_lo >= item.seq.q_len) return false;
  const Asked* q = static_cast<const Asked*>(params.q) + query_row(params.q_stride, item.seq, item.seq.h, 0);
  copy_tile<kThreads, kTileQ, config.head_dim_qk, config.copy_bytes, config.queries>(
      queries, StridedRows<Asked>{q, params.q_stride.token}, q_lo, item.seq.q_len);
  commit_copies();
  if (threadIdx.x == 0) {
    set_block_state(block, params, item.seq, q_lo);
    if constexpr (kDrops) store_dropout_key(queries - kLayout.q_offset + kLayout.dropout_offset, params);
  }
  __syncthreads();
  return true;
}

// Copies KV tiles to shared memory. With one stage there is a slot for K and one for V: V arrives while S is computed,
// and the next K while P V is. With more stages there are as many slots for both, and copies run ahead by one tile
// less.
struct KeyValueCopies {
  const KernelParams& params;
  const BlockState& block;
  u32 keys, values;
  int ahead = 0;  // The next tile to copy, with more than one stage.
  int slot = 0;   // The slot of the tile that is computed.

  __device__ void copy_keys(int tile, int to) const {
    copy_tile<kThreads, kTileKv, config.head_dim_qk, config.copy_bytes>(
        keys + to * kLayout.k.bytes(), key_rows(params, params.k_stride, block.k, block.seq), tile * kTileKv,
        block.seq.k_len);
  }
  __device__ void copy_values(int tile, int to) const {
    copy_tile<kThreads, kTileKv, kColumns, config.copy_bytes>(values + to * kLayout.v.bytes(),
                                                              key_rows(params, params.v_stride, block.v, block.seq),
                                                              tile * kTileKv, block.end);
  }
  // It commits even where nothing is left to copy, because waiting counts groups.
  __device__ void copy_ahead(int to) {
    if (ahead >= block.first_tile) {
      const int tile = block.number_of(ahead);
      copy_keys(tile, to);
      copy_values(tile, to);
      ahead = visible_tile(params, block, ahead - 1);
    }
    commit_copies();
  }

  __device__ void begin(int first) {
    ahead = first;
    if constexpr (kStages == 1) {
      if (first >= block.first_tile) copy_keys(block.number_of(first), 0);
      commit_copies();
    } else {
#pragma unroll
      for (int to = 0; to < kStages - 1; ++to) copy_ahead(to);
    }
  }

  __device__ void await_keys(int tile) {
    if constexpr (kStages == 1) {
      wait_copies<0>();
      __syncthreads();
      copy_values(block.number_of(tile), 0);
      commit_copies();
    } else {
      // After the barrier every warp has finished with the tile before this one, so its slot takes the newest copy.
      wait_copies<kStages - 2>();
      __syncthreads();
      copy_ahead(slot == 0 ? kStages - 1 : slot - 1);
    }
  }

  // This comes after S of this tile.
  __device__ void await_values(int next) {
    if constexpr (kStages > 1) return;
    wait_copies<0>();
    __syncthreads();
    if (next >= block.first_tile) copy_keys(block.number_of(next), 0);
    commit_copies();
  }

  __device__ void advance() {
    if constexpr (kStages > 1) slot = slot + 1 == kStages ? 0 : slot + 1;
  }
};

}  // namespace flashjit
