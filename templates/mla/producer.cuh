// The warp that copies K: a box for each lane. Blocks of a cluster copy a part of the rows each, to all of them.
#pragma once

#include "templates/mla/work.cuh"

namespace flashjit {

constexpr int kBoxRows = config.box_keys, kBoxes = rows_of_block(config) / kBoxRows;
constexpr u32 kPageRows = config.page_size > 0 ? config.page_size : 1;
constexpr u64 kKeyPolicy = kEvictFirst;
// How many tiles before their copies L2 is asked for them.
constexpr int kPrefetches = 2;

// Where a box lies: coordinates of the tensor map.
struct BoxPlace {
  int x[5];
};
// From this key on. Behind the end the last page that is there will do: those rows are cleared.
__device__ inline BoxPlace box_place(const KernelParams& params, const Segment& s, int column, int key) {
  if constexpr (kKeyRows == Rows::paged) {
    const int* line = params.block_table + s.seq.b * params.table_stride_batch;
    const u32 number = static_cast<u32>(min(key, s.end - 1)) / kPageRows;
    const u32 page = __ldg(line + number * params.table_stride_page), last = params.pages - 1;
    return {{column, static_cast<int>(static_cast<u32>(key) % kPageRows), 0, static_cast<int>(min(page, last))}};
  } else if constexpr (kKeyRows == Rows::packed) {
    return {{column, kSequenceEnd - s.seq.k_len + key, 0, static_cast<int>(s.seq.k_token) + s.seq.k_len, kSequenceEnd}};
  } else {
    return {{column, key, 0, s.seq.b}};
  }
}

struct Producer {
  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;
  Turn turn = {};

  __device__ void copy(u32 to, u32 barrier, const BoxPlace& at) const {
    constexpr u16 kAll = (1 << kCluster) - 1;
    const auto& x = at.x;
    if constexpr (kKeyRows == Rows::packed) {
      if constexpr (kCluster > 1) copy_box_to(kAll, to, maps.k, barrier, kKeyPolicy, x[0], x[1], x[2], x[3], x[4]);
      else copy_box(to, maps.k, barrier, kKeyPolicy, x[0], x[1], x[2], x[3], x[4]);
    } else {
      if constexpr (kCluster > 1) copy_box_to(kAll, to, maps.k, barrier, kKeyPolicy, x[0], x[1], x[2], x[3]);
      else copy_box(to, maps.k, barrier, kKeyPolicy, x[0], x[1], x[2], x[3]);
    }
  }
  __device__ void prefetch(const BoxPlace& at) const {
    const auto& x = at.x;
    if constexpr (kKeyRows == Rows::packed) prefetch_box(maps.k, kKeyPolicy, x[0], x[1], x[2], x[3], x[4]);
    else prefetch_box(maps.k, kKeyPolicy, x[0], x[1], x[2], x[3]);
  }

  // visit(panel, row of the tile) for the boxes of this lane in `count` panels from `first` on.
  template <class Visit>
  __device__ void each_box(int first, int count, const Visit& visit) const {
#pragma unroll 1
    for (int i = lane_id(); i < count * kBoxes; i += 32)
      visit(first + i / kBoxes, static_cast<int>(cluster_rank()) * rows_of_block(config) + i % kBoxes * kBoxRows);
  }
  __device__ void copy_panels(const Segment& s, int tile, int first, int count) const {
    const u32 keys = shared.k(turn.stage()), full = shared.full(turn.stage());
    each_box(first, count, [&](int panel, int row) {
      copy(keys + panel * kPanelBytes + row * kPanelWidth, full,
           box_place(params, s, panel * kPlaces.k.panel_columns(), tile * kTileKv + row));
    });
  }

  // A half of V at a time. The panel where P was is free when its reader is done, which is the other warpgroup than the
  // one that this place's tiles belong to.
  __device__ void copy_tile(const Segment& s, int tile) {
    const u32 stage = turn.stage(), reader = 1 - stage;
#pragma unroll
    for (u32 half = 0; half < kMlaConsumers; ++half) {
      wait_barrier(shared.empty(stage, half), turn.parity() ^ 1);
      if (half == 0 && lane_id() == 0) arrive_expecting(shared.full(stage), kPlaces.k.bytes());
      __syncwarp();
      copy_panels(s, tile, half * kHalfPanels, kHalfPanels);
      if (half == reader) copy_panels(s, tile, kMlaConsumers * kHalfPanels, kPlaces.k.panels() - 2 * kHalfPanels);
    }
    ++turn.count;
  }
  __device__ void prefetch_tile(const Segment& s, int tile) const {
    if (tile > s.last_tile) return;
    each_box(0, kPlaces.k.panels(), [&](int panel, int row) {
      prefetch(box_place(params, s, panel * kPlaces.k.panel_columns(), tile * kTileKv + row));
    });
  }

  __device__ void run(Progress& at) {
    const Segment& s = at.segment;
    do {
#pragma unroll 1
      for (int tile = visible_tile(params, s, s.first_tile); tile <= s.last_tile;
           tile = visible_tile(params, s, tile + 1)) {
        copy_tile(s, tile);
        prefetch_tile(s, tile + kPrefetches);
      }
      __syncwarp();
      if (lane_id() == 0) at.advance();
      __syncwarp();
    } while (at.more);
  }
};

}  // namespace flashjit
