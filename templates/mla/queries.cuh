// The warps that copy Q, and find the segments that the consumers work on: both while these are at the segment before.
#pragma once

#include "templates/mla/producer.cuh"

namespace flashjit {

struct QueriesProducer {
  const KernelParams& params;
  const SharedMemory& shared;

  __device__ static int first_of_warp() { return static_cast<int>(threadIdx.x) / 32 - 1; }
  __device__ const Stored* row_of(const Segment& segment, int row) const {
    const Row at = row_at(segment.seq, row);
    return static_cast<const Stored*>(params.q) + query_row(params.q_stride, segment.seq, at.h, at.q);
  }
  __device__ static int rows_left(const Segment& segment) { return segment.seq.q_len * kGroup - first_row(segment); }

  // The rows of this block, zeros behind the last, in panels: a row for a warp at a time.
  __device__ void issue(const Segment& segment) const {
    constexpr int kChunks = kPlaces.q.panels() * 8, kInside = config.head_dim_qk / 8;
    const int count = rows_left(segment);
#pragma unroll 1
    for (int row = first_of_warp(); row < kMlaRows; row += kQueriesWarps) {
      const Stored* from = row_of(segment, row < count ? first_row(segment) + row : segment.row_lo);
      const u32 to = shared.q() + row * kPanelWidth;
#pragma unroll
      for (int first = 0; first < kChunks; first += 32) {
        const int chunk = first + static_cast<int>(lane_id());
        if (kChunks % 32 != 0 && chunk >= kChunks) break;
        const bool inside = row < count && chunk < kInside;
        copy_async<16>(to + chunk / 8 * kPlaces.q.panel_bytes() + ((chunk ^ row) & 7) * 16,
                       from + (inside ? chunk * 8 : 0), inside);
      }
    }
    commit_copies();
  }
  // The consumers' products may read them.
  __device__ void complete() const {
    wait_copies<0>();
    fence_async_proxy();
    __syncwarp();
    if (lane_id() == 0) arrive(shared.queries_full());
  }
  // To L2, while there is time.
  __device__ void prefetch(const Segment& segment) const {
    const int count = min(kMlaRows, rows_left(segment)), line = static_cast<int>(lane_id()) * kLineBytes;
    if (line >= config.head_dim_qk * static_cast<int>(sizeof(Stored))) return;
#pragma unroll 1
    for (int row = first_of_warp(); row < count; row += kQueriesWarps)
      prefetch_line(reinterpret_cast<const char*>(row_of(segment, first_row(segment) + row)) + line);
  }

  __device__ void run(Progress* all) const {
    issue(all[0].segment);
    arrive_named(kAskedBarrier, kQueriesThreads + 32);
    complete();
#pragma unroll 1
    for (u32 number = 0;; ++number) {
      const Progress& at = all[number % kMlaSegments];
      if (at.at_last()) return;
      Progress& next = all[(number + 1) % kMlaSegments];
      if (threadIdx.x == 32) {
        next = at;
        next.advance();
      }
      sync_named(kSegmentBarrier, kQueriesThreads);
      prefetch(next.segment);
      wait_barrier(shared.queries_empty(), number % 2);
      issue(next.segment);
      complete();
    }
  }
};

}  // namespace flashjit
