// The vocabulary of warps that gather rows of 16 bits; its lines stand in loop.gen.cuh. Rows go to their slots by
// asynchronous copies, and only readers wait for them: a piece of a tile is full when all copies of its threads have
// come.
#pragma once

#include "templates/mla/find_rows.cuh"

namespace flashjit {

// Eight lanes have a row of a panel, so that they load whole lines of memory.
constexpr int kLanesOfRow = kPanelWidth / kPieceBytes, kRowsAtOnce = 32 / kLanesOfRow;
constexpr int kRowsOfLane = kRowsOfWarp / kRowsAtOnce;
static_assert(kRow.narrow_panels == 0 && kCluster == 1);

struct GathererState : RowFinder {
  const uint4* rows[kRowsOfLane] = {};

  __device__ static int row_of_lane() { return static_cast<int>(lane_id()) / kLanesOfRow; }
  __device__ static int chunk_of_lane() { return static_cast<int>(lane_id()) % kLanesOfRow; }

  __device__ void fetch_rows() {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) rows[i] = begin_of(i * kRowsAtOnce + row_of_lane()) + chunk_of_lane();
  }
  // Prepares the first tile of an item.
  __device__ void begin(const Segment& s, int tile) { find_first_rows(s, tile); }

  __device__ void copy_piece(int piece) const {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int row = own_row() + i * kRowsAtOnce + row_of_lane();
      const u32 to = shared.k(turn.stage()) + row * kPanelWidth + (chunk_of_lane() ^ row % kLanesOfRow) * kChunkBytes;
#pragma unroll
      for (int panel = panels_before(piece); panel < panels_before(piece + 1); ++panel)
        copy_async<kPieceBytes>(to + panel * kPanelBytes, rows[i] + panel * kLanesOfRow, true);
    }
  }
  __device__ void complete_piece(int piece) const { arrive_when_copied(shared.full(turn.stage(), piece)); }
};

}  // namespace flashjit
