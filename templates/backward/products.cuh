// Products of P and of the gradients of the scores of a tile: they add up dQ, dK and dV, and bring them to memory.
#pragma once

#include "templates/backward/scores.cuh"

namespace flashjit {

// The layout of P and of ds in shared memory.
constexpr TileLayout kWeightsLayout = kLayout<Side::keys>.ds;

// Operands of a share of a tile's columns, from a multiple of 16 on, for sums over its rows. Where shares begin with
// whole swizzle groups, steps along a row are constants.
template <bool whole_groups>
struct ShareOperands {
  const TileLayout layout;
  u32 lane;
  int first;  // It counts steps.

  __device__ ShareOperands(u32 tile, const TileLayout layout, int column)
      : layout(layout),
        lane(tile + layout.offset(lane_id() % 16, lane_id() / 16) + (whole_groups ? column * 2 : 0)),
        first(whole_groups ? 0 : column / 16) {}
  __device__ void load(u32 (&b)[4], int step, int rows) const {
    load_matrices_transposed(b, along(lane, layout, first + step) + down(layout, rows));
  }
};

// Computes sums += weights columns, for the columns of the head from `first` on. Weights are this warp's in registers,
// in the layout of an operand, or the weights of all column groups in shared memory. With v_in_k dO has fewer columns
// than a share of them, which is one of dK, may have.
template <int head_dim, int tiles>
__device__ inline void add_products(Sums<tiles>& sums, const Scores& own, u32 shared, u32 columns, int first) {
  constexpr TileLayout layout = tile_layout(kBlockColumns, head_dim, config.element);
  const u32 lane = recompute(lane_id());
  const u32 shared_lane = shared + kWeightsLayout.offset(warp_row() + lane % 16, lane / 16);
  constexpr bool kEnds = config.v_in_k && head_dim < value_columns(config);
  const ShareOperands<!kEnds && tiles % layout.group() == 0> operands(columns, layout, first);
#pragma unroll
  for (int step = 0; step < kBlockColumns / 16; ++step) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if constexpr (kColumnGroups > 1) {
        load_matrices(a[m], along(shared_lane, kWeightsLayout, step) + down(kWeightsLayout, m));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&pair)[4] = own[m][2 * step + i / 2];
          a[m][i] = pack<config.element>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < tiles / 2; ++n) {
      if (kEnds && first + n * 16 >= head_dim) continue;
      u32 b[4];
      operands.load(b, n, step);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma<config.element>(sums[m][2 * n], a[m], b[0], b[1]);
        mma<config.element>(sums[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Puts this warp's P, some of which may be dropped, or its ds into shared memory, [row, column]. The warp's first
// column is a multiple of the number of its columns, a power of two, so a column's number within the warp is XORed into
// a swizzled address.
__device__ inline void share(const Scores& weights, u32 address, const DrawnWeights* drawn = nullptr) {
  constexpr TileLayout layout = kWeightsLayout;
  const u32 lane = recompute(lane_id()), low = layout.group() * kChunkBytes - 1;
  const u32 first = address + layout.offset(warp_row() + lane / 4, warp_column() / 8) + lane % 4 * 4;
#pragma unroll
  for (int n = 0; n < kNTiles; ++n) {
    const u32 bytes = n * kChunkBytes, column = (first ^ (bytes & low)) + (bytes & ~low);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        u32 pair = pack<config.element>(weights[m][n][2 * h], weights[m][n][2 * h + 1]);
        if (drawn) pair &= drawn->of_pair<Side::keys>(m, n, h);
        store_shared(column + (m * 16 + h * 8) * layout.row_bytes(), pair);
      }
  }
}

// The columns of a gradient that are in the sums of this warp, from `first` on. The warp has the columns from `own` on
// for itself, and shares the ones before `own` with the previous share.
struct Share {
  int first, own;
};
template <int padded_dim, int tiles>
__device__ inline Share share_of_warp(int slice) {
  const int own = (slice * kColumnGroups + static_cast<int>(column_group())) * tiles * 8;
  return {min(own, padded_dim - tiles * 8), own};
}

// Stores an element of a gradient in fp32, or adds to it with accumulate.
__device__ inline void add_or_store(float* at, float x) { *at = config.accumulate ? *at + x : x; }

// Stores this block's rows of a gradient, by way of shared memory, of which each warp has some, in whole chunks.
template <Element output, int head_dim, int tiles>
__device__ inline void store_gradient(void* gradient, Int64 first, Int64 stride, const Sums<tiles>& sums, float scale,
                                      int row_lo, int row_end, Share columns, u32 staging) {
  const u32 lane = recompute(lane_id());
  const int end = min(columns.first + tiles * 8, head_dim);
  if constexpr (output == Element::f32) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_lo + warp_row() + m * 16 + h * 8 + lane / 4;
        if (row >= row_end) continue;
        float* out = static_cast<float*>(gradient) + first + row * stride + columns.first + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
          const int column = columns.first + n * 8;
          if (column < columns.own || column >= end) continue;
          add_or_store(out + n * 8, sums[m][n][2 * h] * scale);
          add_or_store(out + n * 8 + 1, sums[m][n][2 * h + 1] * scale);
        }
      }
  } else {
    constexpr TileLayout layout = tile_layout(kBlockRows, round_up(head_dim, 16), config.element);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int chunk = columns.first / 8 + n;
          if (chunk * 8 >= columns.own)
            store_shared(staging + layout.offset(warp_row() + m * 16 + h * 8 + lane / 4, chunk) + lane % 4 * 4,
                         pack<output>(sums[m][n][2 * h] * scale, sums[m][n][2 * h + 1] * scale));
        }
    __syncwarp();
    auto* out = static_cast<Bits<output>*>(gradient) + first;
    const int chunks = (end - columns.own) / 8;  // If there are none, others have them all.
    for (int i = lane; i < kRowsOfWarp * chunks; i += 32) {
      const int row = warp_row() + i / chunks, chunk = columns.own / 8 + i % chunks;
      if (row_lo + row < row_end)
        store_chunk<config.copy_bytes>(out + (row_lo + row) * stride + chunk * 8,
                                       load_shared(staging + layout.offset(row, chunk)));
    }
  }
}

// Computes dQ += ds K, for all keys of the block and the columns of its slice. A warp takes its columns one after the
// other, so that few sums are beside those of dK and dV.
__device__ inline void add_query_gradients(const KernelParams& params, const Sequence& seq, int q_lo, int slice, u32 ds,
                                           u32 keys, float* dq_sums) {
  constexpr int kGroups = query_groups(config), kShares = dq_column_groups(config), kTiles = query_tiles(config);
  constexpr int kSlices = gradient_slices(config, Side::keys), kColumns = share_of(padded_dim_qk(config), kSlices),
                kPairs = share_of(kColumns, kShares) / 16, kAtOnce = kPairs < 2 ? kPairs : 2;
  const u32 lane = recompute(lane_id());
  const int group = warp_id() % kGroups, own = slice * kColumns + warp_id() / kGroups * kPairs * 16,
            first = min(own, padded_dim_qk(config) - kPairs * 16),
            end = min((slice + 1) * kColumns, config.head_dim_qk);
  const u32 ds_lane = ds + kWeightsLayout.offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  // Shares begin at multiples of their columns, and warps within them at multiples of theirs.
  constexpr int kGroup = kLayout<Side::keys>.rows_qk.group();
  const ShareOperands<kPairs * 2 % kGroup == 0 && (kSlices == 1 || kColumns / 8 % kGroup == 0)> operands(
      keys, kLayout<Side::keys>.rows_qk, first);
  // Each share is handled by itself. If all shares have the same number of columns, all columns are wanted.
  constexpr bool kEven = kPairs * 16 * kShares == kColumns && padded_dim_qk(config) % kColumns == 0 &&
                         padded_dim_qk(config) == config.head_dim_qk;
  const int q = q_lo + group * kTiles * 16;
  float* tiles = dq_sums + first_dq_sum(params, seq, seq.h, q) + first / 8 * kTileSums;
#pragma unroll
  for (int begin = 0; begin < kPairs; begin += kAtOnce) {
    float sums[kTiles][kAtOnce * 2][4] = {};
#pragma unroll 8
    for (int step = 0; step < kBlockRows / 16; ++step) {
      u32 a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        load_matrices_transposed(a[m], along(ds_lane, kWeightsLayout, group * kTiles + m) + down(kWeightsLayout, step));
#pragma unroll
      for (int n = 0; n < kAtOnce && begin + n < kPairs; ++n) {
        u32 b[4];
        operands.load(b, begin + n, step);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma<config.element>(sums[m][2 * n], a[m], b[0], b[1]);
          mma<config.element>(sums[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kAtOnce * 2 && begin * 2 + n < kPairs * 2; ++n) {
        const int tile = begin * 2 + n, column = first + tile * 8;
        const bool wanted = kEven || (column >= own && column < end);
        add_to_memory(tiles + m * dq_tile_floats(config) + tile * kTileSums, wanted && q + m * 16 < seq.q_len,
                      sums[m][n]);
      }
  }
}

// The sums of this thread's keys, in rows of K that the list has, or null if no such row exists.
using ListedRows = float * [query_tiles(config)][2];
__device__ inline void find_listed_rows(ListedRows& rows, const KernelParams& params, const Sequence& seq, int k_lo,
                                        float* key_sums) {
  constexpr int kTiles = query_tiles(config);
  const int first = k_lo + static_cast<int>(warp_id() % query_groups(config) * kTiles * 16 + lane_id() / 4);
  const u32 of_sequence = static_cast<u32>(seq.b) * params.key_rows;
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int k = first + m * 16 + h * 8;
      const bool is_there = k < seq.k_len && is_chosen(params, seq, k);
      rows[m][h] = is_there
                       ? listed_sums(key_sums, of_sequence + chosen_list(params, seq)[k], seq.hk) + lane_id() % 4 * 4
                       : nullptr;
    }
}

// Computes dK += ds^T Q or dV += P^T dO of the keys of a tile, for all rows of the block, which are heads of one query.
// A warp has 32 keys, or the 16 that exist, and a share of the columns, one after the other. The sums of this gradient
// begin at `first_sum`.
template <int head_dim>
__device__ inline void add_listed_gradient(const ListedRows& to, u32 weights, u32 rows, int first_sum) {
  constexpr int kGroups = query_groups(config), kShares = dq_column_groups(config), kTiles = query_tiles(config);
  constexpr int kPairs = share_of(head_dim, kShares) / 16;
  constexpr int kHeads = group_size(config) < kBlockRows ? group_size(config) : kBlockRows;
  constexpr TileLayout layout = tile_layout(kBlockRows, head_dim, config.element);
  const u32 lane = recompute(lane_id());
  const int group = warp_id() % kGroups, own = warp_id() / kGroups * kPairs * 16,
            first = min(own, head_dim - kPairs * 16);
  const u32 weight_lane = weights + kWeightsLayout.offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const ShareOperands<kPairs * 2 % layout.group() == 0> operands(rows, layout, first);
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    float sums[kTiles][2][4] = {};
#pragma unroll 8
    for (int step = 0; step < (kHeads + 15) / 16; ++step) {
      u32 b[4];
      operands.load(b, n, step);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        u32 a[4];
        load_matrices_transposed(a,
                                 along(weight_lane, kWeightsLayout, group * kTiles + m) + down(kWeightsLayout, step));
        mma<config.element>(sums[m][0], a, b[0], b[1]);
        mma<config.element>(sums[m][1], a, b[2], b[3]);
      }
    }
    const int column = first + n * 16;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float four[4] = {sums[m][0][2 * h], sums[m][0][2 * h + 1], sums[m][1][2 * h], sums[m][1][2 * h + 1]};
        add_four<1>(to[m][h] + first_sum + column, to[m][h] && column >= own, four);
      }
  }
}

// Addresses in shared memory of the block's operands for gradients of columns: P, ds, and the rows.
struct RowOperands {
  u32 p, ds, rows_qk, rows_v;
};
// With dq=atomics: adds shares of the gradients of a tile's columns, from `column_lo` on.
__device__ inline void add_to_columns(const KernelParams& params, const Sequence& seq, int column_lo, int slice,
                                      const RowOperands& of, float* sums) {
  if constexpr (has_lists(config)) {
    ListedRows rows;
    find_listed_rows(rows, params, seq, column_lo, sums);
    add_listed_gradient<padded_dim_qk(config)>(rows, of.ds, of.rows_qk, 0);
    add_listed_gradient<padded_dim_v(config)>(rows, of.p, of.rows_v, padded_dim_qk(config));
  } else {
    add_query_gradients(params, seq, column_lo, slice, of.ds, of.rows_qk, sums);
  }
}

template <int tiles, class Visit>
__device__ inline void each_four(Sums<tiles>& sums, const Visit& visit) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < tiles; ++n) visit(sums[m][n], m * tiles + n);
}

// Adds up gradients of blocks that share keys. Returns false if another block stores them.
template <int tiles_qk, int tiles_v>
__device__ inline bool add_up_parts(const PartSums& all, const KernelParams& params, const BlockState& block,
                                    Sums<tiles_qk>& d_qk, Sums<tiles_v>& d_v) {
  const int warp = block.number * config.sync_backward.warps + static_cast<int>(warp_id());
  float* of_qk = all.of_warp(warp, key_floats(config));
  float* of_v = of_qk + kRowTiles * tiles_qk * PartSums::kFour;
  each_four(d_qk, [&](float(&four)[4], int i) { PartSums::add(of_qk + i * PartSums::kFour, four); });
  each_four(d_v, [&](float(&four)[4], int i) { PartSums::add(of_v + i * PartSums::kFour, four); });
  if (!all.is_last(warp, params.parts)) return false;
  each_four(d_qk, [&](float(&four)[4], int i) { PartSums::read(four, of_qk + i * PartSums::kFour); });
  each_four(d_v, [&](float(&four)[4], int i) { PartSums::read(four, of_v + i * PartSums::kFour); });
  return true;
}

// Each warp stages its own rows, and its own columns, in the memory of K and V, or Q and dO, which nobody reads any
// more.
template <Side side, int tiles_qk, int tiles_v>
__device__ inline void store_gradients(const KernelParams& params, const BlockState& block, Sums<tiles_qk>& d_qk,
                                       const Sums<tiles_v>& d_v, Share share_qk, Share share_v, u32 rows_qk,
                                       u32 rows_v) {
  constexpr float kScale = config.scale * kDropoutFactor;
  const Sequence& seq = block.seq;
  if constexpr (side == Side::keys && config.v_in_k) {
    for_each<tiles_qk>([&](int m, int n, int e) { d_qk[m][n][e] = d_qk[m][n][e] * config.scale + d_v[m][n][e]; });
    store_gradient<config.output_dk, config.head_dim_qk>(params.dk, key_begin(params.dk_stride, seq),
                                                         params.dk_stride.token, d_qk, kDropoutFactor, block.row_lo,
                                                         seq.k_len, share_qk, rows_qk);
  } else if constexpr (side == Side::keys) {
    store_gradient<config.output_dk, config.head_dim_qk>(params.dk, key_begin(params.dk_stride, seq),
                                                         params.dk_stride.token, d_qk, kScale, block.row_lo, seq.k_len,
                                                         share_qk, rows_qk);
    store_gradient<config.output_dv, config.head_dim_v>(params.dv, key_begin(params.dv_stride, seq),
                                                        params.dv_stride.token, d_v, kDropoutFactor, block.row_lo,
                                                        seq.k_len, share_v, rows_v);
  } else {
    store_gradient<config.output_dq, config.head_dim_qk>(params.dq, query_row(params.dq_stride, seq, seq.h, 0),
                                                         query_step(params.dq_stride), d_qk, kScale, block.row_lo,
                                                         seq.q_len, share_qk, rows_qk);
  }
}

}  // namespace flashjit
