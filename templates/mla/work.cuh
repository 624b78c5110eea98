// Shared by the warpgroups of a block: slots in shared memory, barriers, and the order of the tiles. decode/work.cuh
// deals out the keys of a call; here a range belongs to a cluster.
#pragma once

#include "templates/decode/rows.cuh"
#include "templates/hopper/rows.cuh"
#include "templates/kv_rows.cuh"
#include "templates/mla/layout.h"
#include "templates/tile_walk.cuh"

namespace flashjit {

constexpr MlaLayout kLayout = mla_layout(config);
constexpr int kCluster = config.decode.cluster;
constexpr bool kMultipliesNarrow = multiplies_narrow(config);
constexpr int kPanelBytes = kLayout.k.panel_bytes();
constexpr int kHalfPanels = half_columns(config) / kLayout.k.panel_columns();
constexpr int kTailPanel = config.head_dim_v / kLayout.k.panel_columns();  // The first panel behind V.
constexpr int kPiecePanels = kMlaConsumers * kHalfPanels / kMlaPieces;
using Stored = Bits<config.element>;
static_assert(mla_producer_registers(config) + kMlaConsumers * mla_consumer_registers(config) <= 3 * 168);

constexpr int kConsumerThreads = kMlaConsumers * 128, kTileWords = kMlaKeys / 32;

// Named barriers; 0 is __syncthreads.
constexpr int kReadyBarrier = 1;                                  // Each slot has one: P of its tile is there.
constexpr int kGroupBarrier = kReadyBarrier + kMlaStages;         // Each warpgroup has one.
constexpr int kConsumersBarrier = kGroupBarrier + kMlaConsumers;  // Both warpgroups meet at it.
constexpr int kAskedBarrier = kConsumersBarrier + 1;  // The first rows of Q have been requested from memory.
constexpr int kAskedThreads = 64;

// Returns the thread's number in the block, found anew for each use. With products of 8 bits no register is left to
// keep it.
__device__ inline u32 thread_number() {
  if constexpr (!kMultipliesNarrow) return recompute(threadIdx.x);
  u32 number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}
__device__ inline u32 lane_id() { return (kMultipliesNarrow ? thread_number() : threadIdx.x) % 32; }
// Returns true for one lane of a warp.
__device__ inline bool is_elected() {
  u32 elected;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}
__device__ inline u32 cluster_rank() { return kCluster == 1 ? 0 : blockIdx.x % kCluster; }

// Returns the first row of a block in a row tile of its cluster.
__device__ inline int first_row(const Segment& s) { return s.row_lo + static_cast<int>(cluster_rank()) * kMlaRows; }

// A tile's number among all that the block visits, which gives its slot of K and the parity of the barriers there.
struct Turn {
  u32 count = 0;
  __device__ u32 stage() const { return count % kMlaStages; }
  __device__ u32 parity() const { return count / kMlaStages % 2; }
};

// Panels behind V come with the last piece, if K has any. P lies there for the other warpgroup, so these panels are
// free only when both warpgroups have finished with the tile.
__device__ inline int panels_before(int piece) {
  return piece == kMlaPieces ? kLayout.k.panels() : piece * kPiecePanels;
}

struct SharedMemory {
  u32 base;
  unsigned char* memory;

  __device__ float* rows() const { return reinterpret_cast<float*>(memory + kLayout.row_offset); }
  __device__ u32 q() const { return base; }
  __device__ u32 k(u32 stage) const { return base + kLayout.k_offset + stage * kLayout.slot_bytes; }
  __device__ u32 v(u32 stage, u32 half) const { return k(stage) + half * kHalfPanels * kPanelBytes; }
  __device__ u32 p(u32 stage) const { return base + kLayout.p_offset + stage * kLayout.p_stride; }
  // Slots of V^T lie side by side: each has a half of rows.
  __device__ u32 transposed(u32 stage) const { return base + kLayout.v_offset + stage * kMlaKeys; }
  __device__ u32 full(u32 stage, u32 piece) const {
    return base + kLayout.barrier_offset + (stage * kMlaPieces + piece) * 8;
  }
  // The warpgroup of this half has finished with its columns of V, and, if it reads P from here, with P.
  __device__ u32 empty(u32 stage, u32 half) const {
    return base + kLayout.barrier_offset + (kMlaStages * kMlaPieces + stage * kMlaConsumers + half) * 8;
  }

  __device__ u32 queries_full() const { return empty(kMlaStages, 0); }
  __device__ u32 queries_empty() const { return queries_full() + 8; }
  // V^T of a tile is full when two warps have transposed it, and empty when both warpgroups have finished with it.
  __device__ u32 values_full(u32 stage) const { return queries_empty() + 8 + stage * 16; }
  __device__ u32 values_empty(u32 stage) const { return values_full(stage) + 8; }

  __device__ float& reference(int row) const { return rows()[row]; }
  // These are indexed by the warpgroup that writes them, and the row.
  __device__ float& factor(u32 from, int row) const { return rows()[(1 + from) * kMlaRows + row]; }
  __device__ float& sum(u32 from, int row) const { return rows()[(1 + kMlaConsumers + from) * kMlaRows + row]; }
  __device__ float& top(u32 from, int row) const { return rows()[(1 + 2 * kMlaConsumers + from) * kMlaRows + row]; }
  // A bit for each key tells whether the key's row exists, for tiles in slots and for the next ones.
  __device__ u32* seen(u32 tile) const {
    return reinterpret_cast<u32*>(memory + kLayout.seen_offset) + tile % kSeenTiles * kTileWords;
  }
  // The number of tiles that have been copied, or are on their way.
  __device__ int& copied() const { return reinterpret_cast<int&>(memory[kLayout.copied_offset]); }
  // True if references of a warp's rows rose.
  __device__ int& rose(u32 from, u32 warp) const {
    return reinterpret_cast<int*>(rows() + kMlaRows * kMlaRowFloats)[from * kMlaWarps + warp];
  }
};

// With products of 8 bits a warp gives back all keys of a slot, which blocks of a cluster fill for each other.
__device__ inline void release_keys_of(const SharedMemory& shared, u32 stage) {
  if (!is_elected()) return;
  arrive(shared.empty(stage, 0));
  if constexpr (kCluster > 1) arrive_in(shared.empty(stage, 0), cluster_rank() ^ 1);
}

// Returns the tile at or behind `tile` that some query sees, or a tile behind the last one if none is left.
__device__ inline int visible_tile(const KernelParams& params, const Segment& s, int tile) {
  return skip_holes<Walk::up, kTileKv>(params, s.seq, s.q_lo(), s.q_hi(), tile, s.last_tile);
}

// The segments of a range, one after the other.
struct Segments {
  const KernelParams* params;
  Ranges ranges;
  int range, step, end;
  // `cursor` is that of the segment, `begin` that of the range.
  Cursor cursor, begin;

  __device__ Segment first() const { return segment_at(*params, cursor, end - step, range, 0, ranges.lead, true); }
  // Returns whether this segment is the last one. The steps that are left may only lead into the next row tile.
  __device__ bool ends_with(const Segment& segment) const { return step + segment.steps + ranges.lead >= end; }
  // Returns false after the last segment.
  __device__ bool advance(Segment& segment) {
    if (ends_with(segment)) return false;
    step += segment.steps;
    cursor = cursor_after(*params, cursor, segment.steps, ranges.lead);
    segment = segment_at(*params, cursor, end - step, range, 0, ranges.lead, false);
    return true;
  }
};

// Holds how far the consumers, or the producer, have come. It lies in shared memory, because they are short of
// registers.
struct Progress {
  Segments segments;
  Segment segment;
  bool more;
  u32 number;  // The number of the segment among those of the range.
  __device__ bool at_last() const { return segments.ends_with(segment); }
  __device__ void advance() { more = segments.advance(segment), ++number; }
  // A warp that works on the progress alone calls this.
  __device__ void advance_warp() {
    __syncwarp();
    if (lane_id() == 0) advance();
    __syncwarp();
  }
};
static_assert(sizeof(Progress) <= kProgressBytes);

// Prefetches what the block reads first.
__device__ inline void ask_ahead(const KernelParams& params, const TensorMaps& maps) {
  if (threadIdx.x == 0) prefetch_map(maps.q);
  if (threadIdx.x == 0 && !gathers_keys(config)) prefetch_map(maps.k);
  prefetch_table<kMlaThreads>(params);
}

}  // namespace flashjit
