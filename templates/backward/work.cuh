// The work of a block of the backward loop: its rows, which tiles of columns it visits, and how they come to shared memory.
#pragma once

#include "templates/backward/prepare.cuh"
#include "templates/kv_rows.cuh"
#include "templates/sequence.cuh"
#include "templates/tile_copy.cuh"
#include "variant.gen.cuh"

namespace flashjit {

template <Side side>
constexpr BackwardLayout kLayout = backward_layout(config, side);
constexpr int kThreads = backward_threads(config);
constexpr int kBlockRows = block_rows(config), kBlockColumns = block_columns(config), kStages = config.stages;
using Stored = Bits<config.element>;

// Values that all threads of the block agree on. They lie in shared memory and are read where they are needed, because
// registers are scarce in this kernel.
struct BlockState {
  Sequence seq;
  const Stored* qk;  // The columns of this sequence and head begin there.
  const Stored* v;
  const RowFacts* facts;
  int row_lo, row_hi;
  int first_tile, last_tile;  // Tiles of columns that some row sees or is seen by.
  int full_begin, full_end;   // Columns in between are visible with every row, and need no mask code.
  int number;                 // The number of the block of keys, without the part of the queries that it has, ...
  int part_first;             // ... which begins with this tile.
};
static_assert(sizeof(BlockState) <= kBackwardStateBytes);

// The queries of a tile are those of a head, or, with lists, the heads of a group at one query.
__device__ inline Sequence sequence_of_tiles(const KernelParams& p, int b, int h) {
  Sequence seq = sequence_of(p, b, h);
  if constexpr (kChosen) seq.q_len = group_size(config);
  return seq;
}
__device__ inline Int64 query_step(const Strides& s) { return kChosen ? s.head : s.token; }
__device__ inline Int64 facts_step(const KernelParams& p) { return kChosen ? all_queries(p) : 1; }

template <Side side>
__device__ inline int rows_of(const Sequence& seq) {
  return side == Side::keys ? seq.k_len : seq.q_len;
}
template <Side side>
__device__ inline int columns_of(const Sequence& seq) {
  return side == Side::keys ? seq.q_len : seq.k_len;
}

// Returns the visible tile at or after `tile`, stepping over tiles in a hole of the mask. A result above last_tile
// means that none is left.
template <Side side>
__device__ inline int visible_tile(const KernelParams& params, const BlockState& block, int tile) {
  if constexpr (config.mask_has_holes) {
    for (; tile <= block.last_tile; ++tile) {
      const int lo = tile * kBlockColumns, hi = min(lo + kBlockColumns, columns_of<side>(block.seq)) - 1;
      if (side == Side::keys ? Variant::may_see(params, block.seq, lo, hi, block.row_lo, block.row_hi)
                             : Variant::may_see(params, block.seq, block.row_lo, block.row_hi, lo, hi))
        break;
    }
  }
  return tile;
}

__device__ inline bool is_mixed(const BlockState& block, int tile) {
  return tile * kBlockColumns < block.full_begin || (tile + 1) * kBlockColumns > block.full_end;
}

// Begins the block's rows, and their copies. Returns false if they lie behind the last one of the sequence.
template <Side side>
__device__ inline bool begin_rows(const KernelParams& params, BlockState& block, u32 memory) {
  constexpr bool kOfGroups = side == Side::keys || kChosen;
  constexpr int kHeads = kOfGroups ? config.heads_kv : config.heads_q, kSlices = gradient_slices(config, side);
  const int tiles = kChosen ? row_tiles_of_list(config)
                            : ((side == Side::keys ? params.k_len : params.q_len) + kBlockRows - 1) / kBlockRows;
  int item = blockIdx.x;
  const int part_first = side == Side::keys && shares_keys(config) ? take_part(params, item) : 0;
  // With a causal mask the first keys have the most queries, and the last queries the most keys, so these start first.
  const int group = max(params.heads_per_group / (side == Side::keys ? group_size(config) : 1), 1);
  auto [head, tile] = tile_of_head(item / kSlices, tiles, kHeads * params.batch, group);
  if (kLongestFirst && side == Side::queries) tile = tiles - 1 - tile;
  const int h = kOfGroups ? head % kHeads * group_size(config) : head % kHeads;
  const Sequence seq = sequence_of_tiles(params, head / kHeads, h);
  const int row_lo = tile * kBlockRows, count = rows_of<side>(seq);
  if (row_lo >= count) return false;
  const auto copy = [&](const void* qk, Int64 qk_begin, Int64 qk_stride, const void* v, Int64 v_begin, Int64 v_stride) {
    copy_tile<kThreads, kBlockRows, config.head_dim_qk, config.copy_bytes>(
        memory, StridedRows<Stored>{static_cast<const Stored*>(qk) + qk_begin, qk_stride}, row_lo, count);
    if constexpr (has_rows_once(config, side)) return;
    copy_tile<kThreads, kBlockRows, config.head_dim_v, config.copy_bytes>(
        memory + kLayout<side>.rows_v_offset, StridedRows<Stored>{static_cast<const Stored*>(v) + v_begin, v_stride},
        row_lo, count);
  };
  if constexpr (side == Side::keys) {
    copy(params.k, key_begin(params.k_stride, seq), params.k_stride.token, params.v, key_begin(params.v_stride, seq),
         params.v_stride.token);
  } else {
    copy(params.q, query_row(params.q_stride, seq, seq.h, 0), query_step(params.q_stride), params.d_o,
         query_row(params.d_o_stride, seq, seq.h, 0), query_step(params.d_o_stride));
  }
  commit_copies();
  if (threadIdx.x == 0) {
    if constexpr (kDrops) store_dropout_key(memory + kLayout<side>.dropout_offset, params);
    block.seq = seq;
    block.number = item, block.part_first = part_first;
    block.row_lo = row_lo;
    block.row_hi = min(row_lo + kBlockRows, count) - 1;
  }
  __syncthreads();
  return true;
}

// Finds which columns of one head of the group meet the rows.
template <Side side>
__device__ inline void begin_head(const KernelParams& params, BlockState& block, const RowFacts* facts, int head) {
  if (threadIdx.x == 0) {
    Sequence seq = block.seq;
    seq.h = side == Side::keys ? seq.hk * group_size(config) + head : seq.h;
    const int lo = block.row_lo, hi = block.row_hi;
    int begin, end;
    if constexpr (side == Side::keys) {
      begin = Variant::q_begin(params, seq, lo, hi);
      end = Variant::q_end(params, seq, lo, hi);
      block.full_begin = Variant::full_q_begin(params, seq, lo, hi);
      // Rows behind the last key are zeros, whose P may be anything. They are hidden, so every tile has mask code.
      block.full_end = lo + kBlockRows > seq.k_len ? 0 : Variant::full_q_end(params, seq, lo, hi);
      block.qk = static_cast<const Stored*>(params.q) + query_row(params.q_stride, seq, seq.h, 0);
      block.v = static_cast<const Stored*>(params.d_o) + query_row(params.d_o_stride, seq, seq.h, 0);
    } else {
      begin = Variant::kv_begin(params, seq, lo, hi);
      end = Variant::kv_end(params, seq, lo, hi);
      block.full_begin = Variant::full_begin(params, seq, lo, hi);
      block.full_end = Variant::full_end(params, seq, lo, hi);
      block.qk = static_cast<const Stored*>(params.k) + key_begin(params.k_stride, seq);
      block.v = static_cast<const Stored*>(params.v) + key_begin(params.v_stride, seq);
    }
    block.seq = seq;
    block.facts = facts + facts_row(params, seq, seq.h, 0);
    block.last_tile = begin < end ? (end - 1) / kBlockColumns : -1;
    int first = begin / kBlockColumns;
    if constexpr (side == Side::keys && shares_keys(config)) {
      block.last_tile = min(block.last_tile, block.part_first + params.part_tiles - 1);
      first = max(first, block.part_first);
    }
    block.first_tile = visible_tile<side>(params, block, first);
  }
  __syncthreads();
}

// Reads the facts of the thread's rows, which are queries.
__device__ inline void read_facts(RowFacts (&of_rows)[kRowTiles][2], const KernelParams& params,
                                  const BlockState& block) {
  const int warp = threadIdx.x / 32, first = block.row_lo + warp / column_groups(config) * kRowsOfWarp;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int q = first + m * 16 + half * 8 + static_cast<int>(threadIdx.x % 32 / 4);
      of_rows[m][half] = q < block.seq.q_len ? block.facts[q * facts_step(params)] : RowFacts{kInfinity, 0.0f};
    }
}

// Copies tiles of columns to shared memory; one tile less than there are stages is under way.
template <Side side>
struct ColumnCopies {
  const KernelParams& params;
  const BlockState& block;
  u32 memory;
  int ahead = 0;  // The next tile to copy.
  int slot = 0;   // The slot of the tile that is computed.

  __device__ u32 address(int of) const {
    return memory + kLayout<side>.columns_offset + of * kLayout<side>.stage_bytes;
  }
  __device__ u32 facts_address(int of) const {
    return memory + kLayout<side>.facts_offset + of * kBlockColumns * static_cast<int>(sizeof(RowFacts));
  }
  __device__ u32 facts_address() const { return facts_address(slot); }

  __device__ auto columns(const Strides& s, const Stored* begin) const {
    if constexpr (side == Side::keys) return StridedRows<Stored>{begin, s.token};
    else return key_rows(params, s, begin, block.seq);
  }

  // It commits even where nothing is left to copy, because waiting counts groups.
  __device__ void copy_ahead(int to) {
    if (ahead <= block.last_tile) {
      const int first = ahead * kBlockColumns, count = columns_of<side>(block.seq);
      const Strides &qk = side == Side::keys ? params.q_stride : params.k_stride,
                    &v = side == Side::keys ? params.d_o_stride : params.v_stride;
      copy_tile<kThreads, kBlockColumns, config.head_dim_qk, config.copy_bytes>(address(to), columns(qk, block.qk),
                                                                                first, count);
      if constexpr (!has_columns_once(config, side)) {
        copy_tile<kThreads, kBlockColumns, config.head_dim_v, config.copy_bytes>(
            address(to) + kLayout<side>.columns_v_offset, columns(v, block.v), first, count);
      }
      if constexpr (side == Side::keys) {
        // This is no loop, because there are at least as many threads.
        static_assert(kBlockColumns <= kThreads);
        const int i = threadIdx.x;
        if (i < kBlockColumns)
          copy_async<sizeof(RowFacts)>(facts_address(to) + i * sizeof(RowFacts),
                                       block.facts + min(first + i, count - 1), first + i < count);
      }
      ahead = visible_tile<side>(params, block, ahead + 1);
    }
    commit_copies();
  }

  __device__ void begin() {
    ahead = block.first_tile;
#pragma unroll
    for (int to = 0; to < max(1, kStages - 1); ++to) copy_ahead(to);
  }

  // Waits until all warps have the next tile. With more than one stage the slot of the tile before it is free then, and
  // takes the newest copy.
  __device__ u32 await() {
    wait_copies<kStages == 1 ? 0 : kStages - 2>();
    __syncthreads();
    if constexpr (kStages > 1) copy_ahead(slot == 0 ? kStages - 1 : slot - 1);
    return address(slot);
  }
  __device__ void release() {
    if constexpr (kStages > 1) {
      slot = slot + 1 == kStages ? 0 : slot + 1;
      return;
    }
    __syncthreads();
    copy_ahead(0);
  }
  // The copies of this head are done; the next head overwrites state and slots.
  __device__ void end() {
    wait_copies<0>();
    __syncthreads();
  }
};

}  // namespace flashjit
