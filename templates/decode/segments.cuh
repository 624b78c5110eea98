// The vocabulary of decode's blocks: the functions that lines of loop.gen.cuh call. Decode is attention of few queries
// over many keys, for every GPU from sm_80 on: it is split along the keys, and bound by reading K and V.
//
// The query heads of a KV head and their queries are the rows of a tile. Warps of a block share the KV tiles of a
// segment, and each warp has all rows. Their sums are put together in shared memory. The sums that several blocks have
// of a tile are put together by the second launch (combine.cuh), or by a team (team.cuh). Until then no warp waits for
// another.
#pragma once

#include "templates/decode/combine.cuh"
#include "templates/decode/softmax.cuh"
#include "templates/decode/team.cuh"

namespace flashjit {

// Multiplies O by the units of its rows.
__device__ inline void scale_output(Output& o, const SoftmaxRows& rows) {
#pragma unroll
  for (int r = 0; r < kOctets; ++r) scale_output(o, r, rows.unit[r]);
}
__device__ inline void clear(Output& o) {
#pragma unroll
  for (int r = 0; r < kOctets; ++r)
#pragma unroll
    for (int m = 0; m < kOutputs; ++m) o[r][m][0] = o[r][m][1] = o[r][m][2] = o[r][m][3] = 0;
}

// Stores this warp's part of a segment in its own shared memory: O row after row, then the states of the rows.
__device__ inline void store_part(u32 part, const Segment& s, const Output& o, const SoftmaxRows& rows) {
  const int g = lane_id() / 4, i = lane_id() % 4, count = rows_of(s);
#pragma unroll
  for (int r = 0; r < kOctets; ++r) {
#pragma unroll
    for (int j = 0; j < kValuePieces; ++j) {
      const int column = j * kValueColumns + g * kLaneColumns;
      if (config.head_dim_v % kValueColumns != 0 && column >= config.head_dim_v) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = r * kOctet + i * 2 + e;
        if (row >= count) continue;
        const u32 to = part + (row * kPartRow + column) * 4;
        const auto& w = o[r];
#pragma unroll
        for (int m = 0; m < kValueProducts; m += 2) {
          const auto &first = w[j * kValueProducts + m], &second = w[j * kValueProducts + m + 1];
          store_floats(to + m * 8, make_float4(first[e], first[e + 2], second[e], second[e + 2]));
        }
      }
    }
    const float sum = quad_sum(rows.sum[r]);
    if (i == 0) {
      store_floats(part + (kTileRows * kPartRow + (r * kOctet + g) * kRowState) * 4,
                   make_float4(rows.reference[r], sum, rows.top[r], 0.0f));
    }
  }
}

// With accumulate: stores what earlier calls left of the rows beside their states. Nobody has stored a result of the
// tile yet: a block meets first, and a team and the second launch wait for parts.
__device__ inline void store_earlier(const KernelParams& params, u32 part, const Segment& s) {
  __syncwarp();
  for (int row = lane_id(); row < rows_of(s); row += 32) {
    const Row at = row_at(s.seq, s.row_lo + row);
    Sequence seq = s.seq;
    seq.h = at.h;
    const float earlier = earlier_lse(params, result_row(params, seq, at.q));
    store_shared(part + (kTileRows * kPartRow + row * kRowState + kRowState - 1) * 4, __float_as_uint(earlier));
  }
}

// Finds where the warps of a block store their parts, and adds these up.
struct WarpParts {
  u32 first;
  int step;
  __device__ u32 of(int warp) const { return first + warp * step; }

  __device__ Quad sum_of(int row, int column) const {
    float4 states[config.decode.warps];
    Quad sum;
    sum.clear();
#pragma unroll
    for (int w = 0; w < config.decode.warps; ++w) {
      states[w] = load_floats(of(w) + (kTileRows * kPartRow + row * kRowState) * 4);
      sum.state.reference = fmaxf(sum.state.reference, states[w].x);
    }
#pragma unroll
    for (int w = 0; w < config.decode.warps; ++w) {
      const float weight = weight_of(states[w].x, sum.state.reference);
      sum.state.sum += states[w].y * weight;
      sum.state.top = fmaxf(sum.state.top, states[w].z);
      sum.state.earlier = earlier_of<Earlier>(states[0].w);
      add_scaled(sum.o, load_floats(of(w) + (row * kPartRow + column) * 4), weight);
    }
    return sum;
  }
};

__device__ inline WarpParts parts_beside_rings(u32 shared) { return {shared + kLayout.part_offset, kPartFloats * 4}; }
// Teams put parts into rings that are no longer read.
__device__ inline WarpParts parts_in_rings(u32 shared) {
  return {shared + kLayout.team_part_offset, kLayout.team_part_step};
}

// A block alone adds each fixed part to the ones before.
__device__ inline bool folds_parts(const KernelParams& params) { return kHasTeams && kFixedParts && params.team == 1; }

// Stores four columns of a row of a segment that a block has alone: in the outputs, or in the block's part of the tile.
__device__ inline void store_sum(const KernelParams& params, const Segment& s, int row, int column, const Quad& whole,
                                 float* parts) {
  if (s.part < 0) {
    store_quad(params, s.seq, s.row_lo + row, column, whole);
    return;
  }
  float* first = parts + first_part_of(params, s) * kPartFloats;
  if (folds_parts(params)) {
    // Sums take turns in two buffers, because threads share a row's state, and one writes it while others may still
    // read it.
    const int turn = s.part_number % 2;
    Quad sum = whole;
    if (s.part_number > 0) {
      sum = load_quad(first + (1 - turn) * kPartFloats, row, column);
      sum.add(whole);
    }
    if (s.last_of_part == s.last_tile) store_quad(params, s.seq, s.row_lo + row, column, sum);
    else save_quad(first + turn * kPartFloats, row, column, sum);
  } else {
    save_quad(first + (kFixedParts ? s.part_number * kPartFloats : 0), row, column, whole);
  }
}

// Threads call use(i, row, first column, sum) for each quad of a row tile, with the sum over the warps of this block.
template <class Use>
__device__ inline void for_each_sum(const Segment& s, const WarpParts& of_warps, const Use& use) {
  constexpr int kQuads = config.head_dim_v / 4;  // Each quad is four columns of a row.
  const int quads = rows_of(s) * kQuads;
  for (int i = threadIdx.x; i < quads; i += kThreads) {
    const int row = i / kQuads, column = i % kQuads * 4;
    use(i, row, column, of_warps.sum_of(row, column));
  }
}

__device__ inline void store_sums(const KernelParams& params, const Segment& s, const WarpParts& of_warps,
                                  float* parts) {
  for_each_sum(s, of_warps,
               [&](int, int row, int column, const Quad& sum) { store_sum(params, s, row, column, sum, parts); });
}
// A block of a team pushes its sums to the blocks that add them up. The block that has computed a fixed part stores it;
// where there is none, the first block stores the rows.
__device__ inline void push_sums(const KernelParams& params, const Segment& s, const WarpParts& of_warps,
                                 const TeamShares& shares, float* parts) {
  if (!kFixedParts || s.steps > 0 || shares.rank == 0) {
    for_each_sum(s, of_warps, [&](int quad, int row, int column, const Quad& sum) {
      if (shares.pushes()) shares.push(kFixedParts ? s.part_number : shares.rank, quad, sum);
      else store_sum(params, s, row, column, sum, parts);
    });
  }
}

// A block's position in its work: a segment of its range, or of a row tile that belongs to it alone.
struct Course {
  const KernelParams& params;
  Segment segment;
  bool has_items;
  int item;                    // It is valid with items.
  int range, side, step, end;  // They are valid without items.
  Cursor cursor;

  // Finds the first segment. Returns false if there is nothing to do.
  __device__ bool begin(int* scratch) {
    prefetch_table<kThreads>(params);
    has_items = kHasTeams && params.team > 0;
    if (has_items) {
      item = static_cast<int>(blockIdx.x);
      return find_item(params, item, segment);
    }
    const Ranges ranges = ranges_of(params, count_steps<kThreads>(params, scratch));
    range = blockIdx.x / kSides;
    side = blockIdx.x % kSides;
    if (range >= ranges.count) return false;
    step = ranges.begin(range);
    end = ranges.begin(range + 1);
    if (step == end) return false;  // The call has no steps at all.
    cursor = cursor_at<kThreads>(params, step, 0, scratch);
    segment = segment_at(params, cursor, end - step, range, side, 0, true);
    return true;
  }
  __device__ bool next() {
    if (has_items) {
      item += static_cast<int>(gridDim.x);
      return find_item(params, item, segment);
    }
    step += segment.steps;
    if (step >= end) return false;
    cursor = cursor_after(params, cursor, segment.steps, 0);
    segment = segment_at(params, cursor, end - step, range, side, 0, false);
    return true;
  }
};

// Finds the tile of a segment that comes first for this warp, and where its keys lie.
__device__ inline void look_ahead(const KernelParams& params, const Segment& segment, int& tile, KvTiles& tiles) {
  tile = first_of_warp(params, segment);
  tiles.where.look_ahead(segment, tile);
}

}  // namespace flashjit
