// The vocabulary of the warp that copies Q, and finds the segments that the consumers work on, while these work on the
// segment before. loop.gen.cuh determines what this warp does, and in which order.
#pragma once

#include "templates/mla/producer.cuh"

namespace flashjit {

constexpr int kQueryRows = queries_of_box(config), kQueryBoxes = kMlaRows / kQueryRows;
constexpr int kNoQuery = kSequenceEnd;  // Zeros lie there, because no tensor has so many queries.

struct QueriesProducerState {
  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;

  __device__ void expect() const {
    if (lane_id() == 0) arrive_expecting(shared.queries_full(), kLayout.q.bytes());
  }
  // Copies the rows of this block, with zeros behind the last one: a box for each lane.
  __device__ void copy(const Segment& segment) const {
    // With chosen keys each query is a sequence of its own.
    const int query = kChosen ? static_cast<int>(segment.seq.q_token) : 0;
#pragma unroll 1
    for (int i = static_cast<int>(lane_id()); i < kLayout.q.panels() * kQueryBoxes; i += 32) {
      const int panel = i / kQueryBoxes, row = i % kQueryBoxes * kQueryRows;
      const int of_group = first_row(segment) + row;
      // Rows behind a query's last one belong to its neighbour. Results with fixed parts must not depend on them.
      const int first = kFixedParts && kChosen && of_group >= kGroup ? kNoQuery : query;
      copy_queries(shared.q() + panel * kLayout.q.panel_bytes() + row * kPanelWidth, maps.q, maps.q_steps,
                   shared.queries_full(), segment.seq, panel * kLayout.q.panel_columns(), first + of_group / kGroup,
                   kEvictNormal, of_group % kGroup);
    }
  }
  // Prefetches the rows to L2, while there is time.
  __device__ void prefetch(const Segment& segment) const {
    constexpr int kLines = (config.head_dim_qk * static_cast<int>(sizeof(Stored)) + kLineBytes - 1) / kLineBytes;
    const int count = min(kMlaRows, segment.seq.q_len * kGroup - first_row(segment));
#pragma unroll 1
    for (int i = static_cast<int>(lane_id()); i < count * kLines; i += 32) {
      const Row at = row_at(segment.seq, first_row(segment) + i / kLines);
      const Stored* row = static_cast<const Stored*>(params.q) + query_row(params.q_stride, segment.seq, at.h, at.q);
      prefetch_line(reinterpret_cast<const char*>(row) + i % kLines * kLineBytes);
    }
  }
  // Finds the segment behind this one.
  __device__ static void find_next(Progress& next, const Progress& at) {
    for (u32 i = lane_id(); i < sizeof(Progress) / sizeof(u32); i += 32)
      reinterpret_cast<u32*>(&next)[i] = reinterpret_cast<const u32*>(&at)[i];
    __syncwarp();
    if (lane_id() == 0) next.advance();
  }
};

}  // namespace flashjit
