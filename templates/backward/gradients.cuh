// Backward attention for every GPU from sm_80 on: cp.async copies, ldmatrix, mma.sync. With dq=launch there are two
// launches of one loop, which see the scores from their two sides (layout.h): dK and dV of a block of keys, dQ of a block
// of queries. Each makes the scores anew, so gradients are sums in a fixed order, of which nothing goes through memory.
// With dq=atomics the first of them adds its share of dQ to sums in memory, with five products instead of seven.
//
// A warp owns 16 rows, and sees all columns. With s the logits of its rows and the columns of a tile, in registers:
//   P = exp(s - lse), dP = dO V^T, ds = P (dP - delta) ds/d(scale q.k)
//   of keys:    dV += P dO, dK += ds Q        of queries: dQ += ds K
#pragma once

#include "templates/backward/prepare.cuh"
#include "templates/backward/work.cuh"
#include "templates/device.cuh"
#include "templates/tile_operands.cuh"

namespace flashjit {

constexpr int kNTiles = kBlockColumns / 8;  // 8-column tiles of scores
using Scores = float[kNTiles][4];

__device__ inline u32 lane_id() { return threadIdx.x % 32; }
__device__ inline u32 warp_id() { return threadIdx.x / 32; }

// scores = rows columns^T over all columns of the head.
template <int head_dim>
__device__ inline void multiply_rows(Scores& s, u32 rows, const TileLayout row_layout, u32 columns,
                                     const TileLayout column_layout) {
#pragma unroll
  for (int n = 0; n < kNTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = 0;
  const u32 lane = recompute(lane_id());
  const u32 row_lane = rows + row_layout.offset(warp_id() * kRowsOfWarp + lane % 16, lane / 16),
            column_lane = columns + column_layout.offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll 2
  for (int step = 0; step < head_dim / 16; ++step) {
    u32 a[4];
    load_matrices(a, along(row_lane, row_layout, step));
#pragma unroll
    for (int n = 0; n < kNTiles / 2; ++n) {
      u32 b[4];
      load_matrices(b, along(column_lane, column_layout, step) + down(column_layout, n));
      mma<config.element>(s[2 * n], a, b[0], b[1]);
      mma<config.element>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// sums += weights columns, of the columns of the head from step `first` on: weights have the layout of scores, which is
// that of an operand.
template <int tiles>
__device__ inline void add_products(float (&sums)[tiles][4], const Scores& weights, u32 columns,
                                    const TileLayout layout, int first) {
  const u32 lane = recompute(lane_id());
  const u32 column_lane = columns + layout.offset(lane % 16, lane / 16);
#pragma unroll
  for (int step = 0; step < kBlockColumns / 16; ++step) {
    const u32 a[4] = {pack<config.element>(weights[2 * step][0], weights[2 * step][1]),
                      pack<config.element>(weights[2 * step][2], weights[2 * step][3]),
                      pack<config.element>(weights[2 * step + 1][0], weights[2 * step + 1][1]),
                      pack<config.element>(weights[2 * step + 1][2], weights[2 * step + 1][3])};
#pragma unroll
    for (int n = 0; n < tiles / 2; ++n) {
      u32 b[4];
      load_matrices_transposed(b, along(column_lane, layout, first + n) + down(layout, step));
      mma<config.element>(sums[2 * n], a, b[0], b[1]);
      mma<config.element>(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// The query and the key of an element of this thread.
template <Side side>
struct Place {
  int q, k;
  __device__ Place(int row, int column) : q(side == Side::keys ? column : row), k(side == Side::keys ? row : column) {}
  __device__ Place moved(int rows, int columns) const {
    return side == Side::keys ? Place(k + rows, q + columns) : Place(q + rows, k + columns);
  }
};

// The query and the key of this thread's first score of a tile.
template <Side side>
__device__ inline Place<side> first_place(int row_lo, int column_lo) {
  const u32 thread = recompute(threadIdx.x);
  return {static_cast<int>(row_lo + thread / 32 * kRowsOfWarp + thread % 32 / 4),
          static_cast<int>(column_lo + thread % 4 * 2)};
}

// Products to logits, and `slope`, the derivative of each by scale q.k.
template <Side side>
__device__ inline void make_logits(Scores& s, Scores& slope, const KernelParams& params, const Sequence& seq,
                                   int row_lo, int column_lo) {
  const Place<side> first = first_place<side>(row_lo, column_lo);
#pragma unroll
  for (int n = 0; n < kNTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[n][e] *= config.scale;
      slope[n][e] = 1.0f;
      if constexpr (config.has_score) {
        // Behind the ends a tensor that the score reads may end as well.
        const Place<side> at = first.moved(e / 2 * 8, n * 8 + e % 2);
        const int q = min(at.q, seq.q_len - 1), k = min(at.k, seq.k_len - 1);
        const auto [score, by_s] = Variant::score_and_slope(params, seq, s[n][e], q, k);
        s[n][e] = score;
        slope[n][e] = by_s;
      }
    }
}

// -infinity where the key is not visible to the query, or there is none.
template <Side side>
__device__ inline void hide(Scores& s, const KernelParams& params, const Sequence& seq, int row_lo, int column_lo) {
  const Place<side> first = first_place<side>(row_lo, column_lo);
#pragma unroll
  for (int n = 0; n < kNTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Place<side> at = first.moved(e / 2 * 8, n * 8 + e % 2);
      const bool outside = at.q >= seq.q_len || at.k >= seq.k_len;
      if (outside || (config.has_mask && !Variant::visible(params, seq, at.q, at.k))) s[n][e] = -kInfinity;
    }
}

// Logits to P. Facts of queries are those of the thread's rows, or of the tile's columns.
template <Side side>
__device__ inline void make_probabilities(Scores& s, const RowFacts (&of_rows)[2], u32 of_columns) {
  const u32 place = of_columns + recompute(lane_id()) % 4 * 2 * sizeof(RowFacts);
#pragma unroll
  for (int n = 0; n < kNTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float lse =
          side == Side::queries ? of_rows[e / 2].lse : load_float(place + (n * 8 + e % 2) * sizeof(RowFacts));
      s[n][e] = exp2_approx(s[n][e] * kLog2e - lse);
    }
}

// dP -> ds. Where P is 0 nothing is added, whatever dP is: of hidden keys that is anything.
template <Side side>
__device__ inline void make_score_gradients(Scores& dp, const Scores& p, const Scores& slope,
                                            const RowFacts (&of_rows)[2], u32 of_columns) {
  const u32 place = of_columns + recompute(lane_id()) % 4 * 2 * sizeof(RowFacts) + sizeof(float);
#pragma unroll
  for (int n = 0; n < kNTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float delta =
          side == Side::queries ? of_rows[e / 2].delta : load_float(place + (n * 8 + e % 2) * sizeof(RowFacts));
      dp[n][e] = p[n][e] == 0 ? 0.0f : p[n][e] * (dp[n][e] - delta) * slope[n][e];
    }
}

// The rows of a gradient that are this block's: through shared memory, where each warp has a place, in whole chunks.
template <int tiles, int head_dim>
__device__ inline void store_gradient(void* gradient, Int64 first, Int64 stride, const float (&sums)[tiles][4],
                                      float scale, int row_lo, int row_end, int column, u32 staging,
                                      const TileLayout layout) {
  const u32 lane = recompute(lane_id());
  const int warp_row = warp_id() * kRowsOfWarp;
  auto* out = static_cast<Bits<config.output>*>(gradient) + first + column;
  constexpr int kColumns = tiles * 8;
  const int columns = min(kColumns, head_dim - column);
  if constexpr (config.output == Element::f32) {
    float* floats = static_cast<float*>(gradient) + first + column;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = row_lo + warp_row + lane / 4 + e / 2 * 8, at = n * 8 + lane % 4 * 2 + e % 2;
        if (row < row_end && at < columns) floats[row * stride + at] = sums[n][e] * scale;
      }
  } else {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        store_shared(staging + layout.offset(warp_row + lane / 4 + h * 8, n) + lane % 4 * 4,
                     pack<config.output>(sums[n][2 * h] * scale, sums[n][2 * h + 1] * scale));
    __syncwarp();
    const int chunks = columns / 8;
    for (int i = lane; i < kRowsOfWarp * chunks; i += 32) {
      const int row = warp_row + i / chunks, chunk = i % chunks;
      if (row_lo + row < row_end)
        store_chunk<config.copy_bytes>(out + (row_lo + row) * stride + chunk * 8,
                                       load_shared(staging + layout.offset(row, chunk)));
    }
  }
}

// ds to shared memory, [key, query].
__device__ inline void share_score_gradients(const Scores& ds, u32 place) {
  const u32 lane = recompute(lane_id());
#pragma unroll
  for (int n = 0; n < kNTiles; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      store_shared(place + kLayout.ds.offset(warp_id() * kRowsOfWarp + lane / 4 + h * 8, n) + lane % 4 * 4,
                   pack<config.element>(ds[n][2 * h], ds[n][2 * h + 1]));
}

// Four sums of two rows of a 16 x 8 tile to memory. Lanes exchange halves, so that each has four columns of a row.
__device__ inline void add_to_memory(float* row, Int64 eight_rows, bool first, bool second, const float (&sums)[4]) {
  const u32 lane = recompute(lane_id());
#if __CUDA_ARCH__ >= 900
  const bool odd = lane % 2;
  const float a = __shfl_xor_sync(0xffffffff, odd ? sums[0] : sums[2], 1),
              b = __shfl_xor_sync(0xffffffff, odd ? sums[1] : sums[3], 1);
  float* at = row + (odd ? eight_rows : 0) + lane % 4 / 2 * 4;
  if (odd ? second : first)
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(odd ? a : sums[0]),
                 "f"(odd ? b : sums[1]), "f"(odd ? sums[2] : a), "f"(odd ? sums[3] : b)
                 : "memory");
#else
  float* at = row + lane % 4 * 2;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (e < 2 ? first : second) atomicAdd(at + e / 2 * eight_rows + e % 2, sums[e]);
  }
#endif
}

// dQ += ds K, of all keys of the block and the columns of its part.
template <int tiles>
__device__ inline void add_query_gradients(const KernelParams& params, const Sequence& seq, int q_lo, int part, u32 ds,
                                           u32 keys, float* dq_sums) {
  constexpr int kPairs = tiles / 2, kOfWarp = (kPairs + column_groups(config) - 1) / column_groups(config);
  constexpr int kMost = config.head_dim_qk / 8;
  const u32 lane = recompute(lane_id());
  const int group = warp_id() % query_groups(config), first = warp_id() / query_groups(config) * kOfWarp;
  const u32 ds_lane = along(ds + kLayout.ds.offset(lane % 8 + lane / 16 * 8, lane / 8 % 2), kLayout.ds, group);
  const u32 key_lane = keys + kLayout.rows_qk.offset(lane % 16, lane / 16);
  float sums[kOfWarp * 2][4] = {};
#pragma unroll 2
  for (int step = 0; step < kBlockRows / 16; ++step) {
    u32 a[4];
    load_matrices_transposed(a, ds_lane + down(kLayout.ds, step));
#pragma unroll
    for (int n = 0; n < kOfWarp; ++n) {
      // A warp may have fewer columns, or none.
      const int pair = min(part * kPairs + first + n, padded_dim_qk(config) / 16 - 1);
      u32 b[4];
      load_matrices_transposed(b, along(key_lane, kLayout.rows_qk, pair) + down(kLayout.rows_qk, step));
      mma<config.element>(sums[2 * n], a, b[0], b[1]);
      mma<config.element>(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
  const int q = q_lo + group * 16 + lane / 4;
  float* row = dq_sums + facts_row(params, seq, seq.h, q) * config.head_dim_qk;
#pragma unroll
  for (int n = 0; n < kOfWarp * 2; ++n) {
    const int tile = (part * kPairs + first) * 2 + n;
    const bool own = first * 2 + n < tiles && tile < kMost;
    add_to_memory(row + tile * 8, Int64{8} * config.head_dim_qk, own && q < seq.q_len, own && q + 8 < seq.q_len,
                  sums[n]);
  }
}

template <Side side>
__device__ inline void backward_gradients(const KernelParams& params, const RowFacts* facts, float* dq_sums = nullptr) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kParts = gradient_parts(config, side);
  constexpr int kTilesQk = part_of(padded_dim_qk(config), kParts) / 8,
                kTilesV = part_of(padded_dim_v(config), kParts) / 8;
  const u32 memory = shared_address(shared), rows_qk = memory, rows_v = memory + kLayout.rows_v_offset;
  BlockState& block = *reinterpret_cast<BlockState*>(shared + kLayout.state_offset);
  if (!begin_rows<side>(params, block, memory)) return;
  // The last part may have columns of the one before as well.
  const int part = blockIdx.x % kParts;
  const int column_qk = min(part * kTilesQk * 8, padded_dim_qk(config) - kTilesQk * 8),
            column_v = min(part * kTilesV * 8, padded_dim_v(config) - kTilesV * 8);

  float d_qk[kTilesQk][4] = {}, d_v[kTilesV][4] = {};
  constexpr int kHeads = side == Side::keys ? group_size(config) : 1;
#pragma unroll 1
  for (int head = 0; head < kHeads; ++head) {
    begin_head<side>(params, block, head);
    const RowFacts of_rows[2] = {facts_of_row<side>(params, block, facts, 0),
                                 facts_of_row<side>(params, block, facts, 1)};
    ColumnCopies<side> copies{params, block, facts, memory};
    copies.begin();
#pragma unroll 1
    for (int tile = block.first_tile; tile <= block.last_tile; tile = visible_tile<side>(params, block, tile + 1)) {
      const u32 columns_qk = copies.await(), columns_v = columns_qk + kLayout.columns_qk.bytes();
      const u32 of_columns = copies.facts_place();
      const int column_lo = tile * kBlockColumns;
      Scores p, slope, ds;
      multiply_rows<padded_dim_qk(config)>(p, rows_qk, kLayout.rows_qk, columns_qk, kLayout.columns_qk);
      make_logits<side>(p, slope, params, block.seq, block.row_lo, column_lo);
      if (is_mixed(block, tile)) hide<side>(p, params, block.seq, block.row_lo, column_lo);
      make_probabilities<side>(p, of_rows, of_columns);
      multiply_rows<padded_dim_v(config)>(ds, rows_v, kLayout.rows_v, columns_v, kLayout.columns_v);
      if constexpr (side == Side::keys) add_products(d_v, p, columns_v, kLayout.columns_v, column_v / 16);
      make_score_gradients<side>(ds, p, slope, of_rows, of_columns);
      if constexpr (config.dq == DqSums::atomics) share_score_gradients(ds, memory + kLayout.ds_offset);
      add_products(d_qk, ds, columns_qk, kLayout.columns_qk, column_qk / 16);
      if constexpr (config.dq == DqSums::atomics) {
        __syncthreads();
        add_query_gradients<kTilesQk>(params, block.seq, column_lo, part, memory + kLayout.ds_offset, rows_qk, dq_sums);
      }
      copies.release();
    }
    copies.end();
  }

  // Each warp has its own rows of the places of K and V, or Q and dO, which nobody reads any more.
  const Sequence& seq = block.seq;
  if constexpr (side == Side::keys) {
    store_gradient<kTilesQk, config.head_dim_qk>(params.dk, key_begin(params.dk_stride, seq), params.dk_stride.token,
                                                 d_qk, config.scale, block.row_lo, seq.k_len, column_qk, rows_qk,
                                                 kLayout.rows_qk);
    store_gradient<kTilesV, config.head_dim_v>(params.dv, key_begin(params.dv_stride, seq), params.dv_stride.token, d_v,
                                               1.0f, block.row_lo, seq.k_len, column_v, rows_v, kLayout.rows_v);
  } else {
    store_gradient<kTilesQk, config.head_dim_qk>(params.dq, query_row(params.dq_stride, seq, seq.h, 0),
                                                 params.dq_stride.token, d_qk, config.scale, block.row_lo, seq.q_len,
                                                 column_qk, rows_qk, kLayout.rows_qk);
  }
}

}  // namespace flashjit
