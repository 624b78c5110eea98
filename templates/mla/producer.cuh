// The vocabulary of the warp that copies K, a box for each lane; loop.gen.cuh determines what it does, and in which
// order. Another warp prefetches K to L2. Blocks of a cluster copy a share of the rows each, to all of them.
#pragma once

#include "templates/mla/work.cuh"

namespace flashjit {

constexpr int kBoxRows = keys_of_box(config), kBoxes = rows_of_block(config) / kBoxRows;
constexpr u32 kPageRows = config.page_size > 0 ? config.page_size : 1;
// A warp prefetches a tile kPrefetches tiles before its copy, and reads every kPoll ns what has been copied.
constexpr int kPrefetches = 2, kPoll = 100;
constexpr int kLineBytes = 128;
constexpr int kHalfPieces = kMlaPieces / kMlaConsumers;

// The coordinates of a box behind its column.
struct BoxCoords {
  int x[4];
};
// Returns the coordinates of a box from this key on. Behind the end the last existing page will do, because those rows
// are cleared.
__device__ inline BoxCoords box_coords(const KernelParams& params, const Segment& s, int key) {
  if constexpr (kKeyRows == Rows::paged) {
    const int* line = table_line(params, s.seq);
    const u32 number = static_cast<u32>(min(key, s.end - 1)) / kPageRows;
    const u32 page = __ldg(line + number * params.table_stride_page), last = params.pages - 1;
    return {{static_cast<int>(static_cast<u32>(key) % kPageRows), 0, static_cast<int>(min(page, last))}};
  } else if constexpr (kKeyRows == Rows::packed) {
    return {{kSequenceEnd - s.seq.k_len + key, 0, static_cast<int>(s.seq.k_token) + s.seq.k_len, kSequenceEnd}};
  } else {
    return {{key, 0, s.seq.b}};
  }
}

struct ProducerState {
  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;
  Turn turn = {};

  // Returns the first row of this lane's boxes in a tile.
  __device__ static int box_row() {
    return static_cast<int>(cluster_rank()) * rows_of_block(config) + static_cast<int>(lane_id()) % kBoxes * kBoxRows;
  }
  __device__ BoxCoords coords_of_tile(const Segment& s, int tile) const {
    return box_coords(params, s, tile * kTileKv + box_row());
  }

  __device__ void copy(u32 to, u32 barrier, int column, const BoxCoords& at) const {
    constexpr u16 kAll = (1 << kCluster) - 1;
    const auto& x = at.x;
    if constexpr (kKeyRows == Rows::packed) {
      if constexpr (kCluster > 1) copy_box_to(kAll, to, maps.k, barrier, kEvictFirst, column, x[0], x[1], x[2], x[3]);
      else copy_box(to, maps.k, barrier, kEvictFirst, column, x[0], x[1], x[2], x[3]);
    } else {
      if constexpr (kCluster > 1) copy_box_to(kAll, to, maps.k, barrier, kEvictFirst, column, x[0], x[1], x[2]);
      else copy_box(to, maps.k, barrier, kEvictFirst, column, x[0], x[1], x[2]);
    }
  }
  // The barriers of a half's pieces expect their bytes.
  __device__ void expect_half(int half) const {
    const u32 stage = turn.stage();
    const int first = half * kHalfPieces, lane = static_cast<int>(lane_id());
    if (lane < kHalfPieces) {
      const int panels = panels_before(first + lane + 1) - panels_before(first + lane);
      arrive_expecting(shared.full(stage, first + lane), panels * kPanelBytes);
    }
  }
  // Copies this lane's boxes of the panels of a half.
  __device__ void copy_half(int half, const BoxCoords& at) const {
    const u32 stage = turn.stage(), keys = shared.k(stage) + box_row() * kPanelWidth;
    const int first = half * kHalfPieces, end = panels_before(first + kHalfPieces);
#pragma unroll 1
    for (int panel = panels_before(first) + static_cast<int>(lane_id()) / kBoxes; panel < end; panel += 32 / kBoxes) {
      const int piece = min(panel / kPiecePanels, kMlaPieces - 1);
      copy(keys + panel * kPanelBytes, shared.full(stage, piece), panel * kLayout.k.panel_columns(), at);
    }
  }
  // Tells the prefetching warp that a tile has been copied.
  __device__ void count_tile() {
    ++turn.count;
    if (lane_id() == 0) atomicExch(&shared.copied(), static_cast<int>(turn.count));
  }
};

// Prefetches K from memory to L2, because more loads must wait for memory than two slots of K hold. This is a warp of
// its own, as it would delay the copies. It reads as a number how far these are: with a barrier it could miss two
// phases, and then wait for ever.
struct Prefetcher {
  const KernelParams& params;
  const SharedMemory& shared;

  __device__ void prefetch_tile(const Segment& s, int tile) const {
    const Stored* first = static_cast<const Stored*>(params.k) + key_begin(params.k_stride, s.seq);
    const KeyRows<Stored> rows = key_rows(params, params.k_stride, first, s.seq);
#pragma unroll 1
    for (int row = lane_id(); row < rows_of_block(config); row += 32) {
      const int key = tile * kTileKv + static_cast<int>(cluster_rank()) * rows_of_block(config) + row;
      if (key >= s.end) return;
      const char* at = reinterpret_cast<const char*>(rows.row(key));
#pragma unroll
      for (int byte = 0; byte < config.head_dim_qk * static_cast<int>(sizeof(Stored)); byte += kLineBytes)
        prefetch_line(at + byte);
    }
  }

  // The counting warp and this one meet at no barrier, so both use atomics.
  __device__ int copied_tiles() const {
    return __shfl_sync(0xffffffff, lane_id() == 0 ? atomicAdd(&shared.copied(), 0) : 0, 0);
  }

  __device__ void run(Progress& at) const {
    const Segment& s = at.segment;
    int number = 0;
    do {
#pragma unroll 1
      for (int tile = visible_tile(params, s, s.first_tile); tile <= s.last_tile;
           tile = visible_tile(params, s, tile + 1), ++number) {
        if (number < kMlaStages) continue;  // Such tiles are copied at once.
        while (copied_tiles() < max(number + 1 - kPrefetches, 1)) __nanosleep(kPoll);
        prefetch_tile(s, tile);
      }
      at.advance_warp();
    } while (at.more);
  }
};

}  // namespace flashjit
