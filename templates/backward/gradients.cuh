// Backward attention for every GPU from sm_80 on: cp.async copies, ldmatrix, mma.sync. With dq=launch there are two
// launches of one loop, which see the scores from their two sides (layout.h): dK and dV of a block of keys, dQ of a block
// of queries. Each makes the scores anew, so gradients are sums in a fixed order, of which nothing goes through memory.
// With dq=atomics the first of them adds its share of dQ to sums in memory, with five products instead of seven.
//
// With s the logits of a warp's rows and columns of a tile, in registers:
//   P = exp(s - lse), dP = dO V^T, ds = P (dP - delta) ds/d(scale q.k)
//   of keys:    dV += P dO, dK += ds Q        of queries: dQ += ds K
#pragma once

#include "templates/backward/prepare.cuh"
#include "templates/backward/work.cuh"
#include "templates/device.cuh"
#include "templates/tile_operands.cuh"

namespace flashjit {

constexpr int kColumnGroups = column_groups(config), kWarpColumns = columns_of_warp(config);
constexpr int kNTiles = kWarpColumns / 8;  // 8-column tiles of scores
template <int tiles>
using Sums = float[kRowTiles][tiles][4];
using Scores = Sums<kNTiles>;

__device__ inline u32 lane_id() { return threadIdx.x % 32; }
__device__ inline u32 warp_id() { return threadIdx.x / 32; }
__device__ inline u32 column_group() { return warp_id() % kColumnGroups; }
// The first row of this warp, and the first column of its scores.
__device__ inline u32 warp_row() { return warp_id() / kColumnGroups * kRowsOfWarp; }
__device__ inline u32 warp_column() { return column_group() * kWarpColumns; }

// `f` of the place in Sums of all that a thread has.
template <int tiles, class F>
__device__ inline void for_each(F f) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(m, n, e);
}

// scores = rows columns^T over all columns of the head.
template <int head_dim>
__device__ inline void multiply_rows(Scores& s, u32 rows, const TileLayout row_layout, u32 columns,
                                     const TileLayout column_layout) {
  for_each<kNTiles>([&](int m, int n, int e) { s[m][n][e] = 0; });
  const u32 lane = recompute(lane_id());
  const u32 row_lane = rows + row_layout.offset(warp_row() + lane % 16, lane / 16),
            column_lane = columns + column_layout.offset(warp_column() + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll 8
  for (int step = 0; step < head_dim / 16; ++step) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_matrices(a[m], along(row_lane, row_layout, step) + down(row_layout, m));
#pragma unroll
    for (int n = 0; n < kNTiles / 2; ++n) {
      u32 b[4];
      load_matrices(b, along(column_lane, column_layout, step) + down(column_layout, n));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma<config.element>(s[m][2 * n], a[m], b[0], b[1]);
        mma<config.element>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Operands of a share of a tile's columns, from a multiple of 16 on, for sums over its rows. Where shares begin with whole
// swizzle groups, steps along a row are constants.
template <bool whole_groups>
struct ShareOperands {
  const TileLayout layout;
  u32 lane;
  int first;  // step

  __device__ ShareOperands(u32 tile, const TileLayout layout, int column)
      : layout(layout),
        lane(tile + layout.offset(lane_id() % 16, lane_id() / 16) + (whole_groups ? column * 2 : 0)),
        first(whole_groups ? 0 : column / 16) {}
  __device__ void load(u32 (&b)[4], int step, int rows) const {
    load_matrices_transposed(b, along(lane, layout, first + step) + down(layout, rows));
  }
};

// sums += weights columns, of the columns of the head from `first` on. Weights are those in registers, whose layout is
// that of an operand; or those of all column groups in shared memory.
template <int head_dim, int tiles>
__device__ inline void add_products(Sums<tiles>& sums, const Scores& own, u32 shared, u32 columns, int first) {
  constexpr TileLayout layout = tile_layout(kBlockColumns, head_dim, config.element);
  const u32 lane = recompute(lane_id());
  const u32 shared_lane = shared + kLayout.ds.offset(warp_row() + lane % 16, lane / 16);
  const ShareOperands<tiles % layout.group() == 0> operands(columns, layout, first);
#pragma unroll
  for (int step = 0; step < kBlockColumns / 16; ++step) {
    u32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if constexpr (kColumnGroups > 1) {
        load_matrices(a[m], along(shared_lane, kLayout.ds, step) + down(kLayout.ds, m));
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
  const u32 warp = thread / 32, row = warp / kColumnGroups * kRowsOfWarp + thread % 32 / 4,
            column = warp % kColumnGroups * kWarpColumns + thread % 4 * 2;
  return {static_cast<int>(row_lo + row), static_cast<int>(column_lo + column)};
}

// Products to logits, and `slope`, the derivative of each by scale q.k. Without a score function the scale is a matter of
// make_probabilities().
template <Side side>
__device__ inline void make_logits(Scores& s, Scores& slope, const KernelParams& params, const Sequence& seq,
                                   int row_lo, int column_lo) {
  const Place<side> first = first_place<side>(row_lo, column_lo);
  for_each<kNTiles>([&](int m, int n, int e) {
    // Behind the ends a tensor that the score reads may end as well.
    const Place<side> at = first.moved(m * 16 + e / 2 * 8, n * 8 + e % 2);
    const int q = min(at.q, seq.q_len - 1), k = min(at.k, seq.k_len - 1);
    const auto [score, by_s] = Variant::score_and_slope(params, seq, s[m][n][e] * config.scale, q, k);
    s[m][n][e] = score;
    slope[m][n][e] = by_s;
  });
}

// -infinity where the key is not visible to the query, or there is none.
template <Side side>
__device__ inline void hide(Scores& s, const KernelParams& params, const Sequence& seq, int row_lo, int column_lo) {
  const Place<side> first = first_place<side>(row_lo, column_lo);
  const int q_len = seq.q_len, k_len = seq.k_len;
  for_each<kNTiles>([&](int m, int n, int e) {
    const Place<side> at = first.moved(m * 16 + e / 2 * 8, n * 8 + e % 2);
    const bool outside = at.q >= q_len || at.k >= k_len;
    if (outside || (config.has_mask && !Variant::visible(params, seq, at.q, at.k))) s[m][n][e] = -kInfinity;
  });
}

// Where queries are rows, facts are of the rows of this thread; where they are columns, they are read where they are
// needed, two columns at a time.
template <Side side>
struct Facts {
  RowFacts of_rows[kRowTiles][2];
  u32 of_columns;

  __device__ void of_pair(RowFacts (&pair)[2], int n) const {
    if constexpr (side == Side::queries) return;
    const u32 thread = recompute(threadIdx.x), group = thread / 32 % kColumnGroups;
    const uint4 words =
        load_shared(of_columns + (group * kWarpColumns + n * 8 + thread % 4 * 2) * static_cast<u32>(sizeof(RowFacts)));
    pair[0] = {__uint_as_float(words.x), __uint_as_float(words.y)};
    pair[1] = {__uint_as_float(words.z), __uint_as_float(words.w)};
  }
  // `f` of each score and the facts of its query.
  template <class F>
  __device__ void for_each_score(F f) const {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
      RowFacts pair[2] = {};
      of_pair(pair, n);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) f(m, n, e, side == Side::queries ? of_rows[m][e / 2] : pair[e % 2]);
    }
  }
};

// Logits, or products, to P.
template <Side side>
__device__ inline void make_probabilities(Scores& s, const Facts<side>& facts) {
  constexpr float kFactor = config.has_score ? kLog2e : config.scale * kLog2e;
  facts.for_each_score([&](int m, int n, int e, const RowFacts& of_query) {
    s[m][n][e] = exp2_approx(s[m][n][e] * kFactor - of_query.lse);
  });
}

// dP -> ds. Where keys may be hidden, nothing is added where P is 0, whatever dP is: of hidden keys that is anything.
template <Side side>
__device__ inline void make_score_gradients(Scores& dp, const Scores& p, const Scores& slope, bool hidden,
                                            const Facts<side>& facts) {
  if constexpr (config.has_score) {
    facts.for_each_score([&](int m, int n, int e, const RowFacts& of_query) {
      const float ds = p[m][n][e] * (dp[m][n][e] - of_query.delta) * slope[m][n][e];
      dp[m][n][e] = p[m][n][e] == 0 ? 0.0f : ds;  // scores hide keys in any tile
    });
  } else {
    facts.for_each_score([&](int m, int n, int e, const RowFacts& of_query) {
      dp[m][n][e] = p[m][n][e] * (dp[m][n][e] - of_query.delta);
    });
    if (hidden) for_each<kNTiles>([&](int m, int n, int e) { dp[m][n][e] = p[m][n][e] == 0 ? 0.0f : dp[m][n][e]; });
  }
}

// A bit for each score of a thread.
struct HiddenScores {
  u32 words[(kRowTiles * kNTiles * 4 + 31) / 32] = {};
  static constexpr int number(int m, int n, int e) { return (m * kNTiles + n) * 4 + e; }
  __device__ void set(int i, bool hidden) { words[i / 32] |= static_cast<u32>(hidden) << i % 32; }
  __device__ bool operator[](int i) const { return words[i / 32] >> i % 32 & 1; }
};

// Products of scores and dP to P and ds, and what those give for gradients of parameters: all at once, as a derivative may
// need the score itself. Of blocks that make the same scores one `counts`.
using OfParameters = ParameterSums<kRowTiles * 2>;
__device__ inline void make_all_gradients(Scores& p, Scores& ds, OfParameters& sums, const KernelParams& params,
                                          const BlockState& block, int column_lo, bool mixed,
                                          const Facts<Side::keys>& facts, bool counts) {
  const Place<Side::keys> first = first_place<Side::keys>(block.row_lo, column_lo);
  const Sequence& seq = block.seq;
  HiddenScores hidden;
  if (mixed) {
    for_each<kNTiles>([&](int m, int n, int e) {
      const Place<Side::keys> at = first.moved(m * 16 + e / 2 * 8, n * 8 + e % 2);
      const bool outside = at.q >= seq.q_len || at.k >= seq.k_len;
      hidden.set(hidden.number(m, n, e), outside || (config.has_mask && !Variant::visible(params, seq, at.q, at.k)));
    });
  }
  facts.for_each_score([&](int m, int n, int e, const RowFacts& of_query) {
    const Place<Side::keys> at = first.moved(m * 16 + e / 2 * 8, n * 8 + e % 2);
    float &of_p = p[m][n][e], &of_ds = ds[m][n][e];
    const auto d = Variant::score_and_derivatives(params, seq, of_p * config.scale, min(at.q, seq.q_len - 1),
                                                  min(at.k, seq.k_len - 1));
    of_p = hidden[hidden.number(m, n, e)] ? 0.0f : exp2_approx(d.score * kLog2e - of_query.lse);
    const float by_logit = of_p == 0 ? 0.0f : of_p * (of_ds - of_query.delta);
    of_ds = by_logit * d.slope;
    // Of rows behind the last key a tile without mask code makes something as well.
    if (counts) sums.add(params, seq, at.q, at.k, m * 2 + e / 2, e % 2, at.k < seq.k_len ? by_logit : 0.0f, d);
  });
}

// P or ds of this warp to shared memory, [row, column]. Its first column is a multiple of how many it has, a power of two:
// so the column's number within the warp is an XOR of a swizzled address.
__device__ inline void share(const Scores& weights, u32 place) {
  constexpr TileLayout layout = kLayout.ds;
  const u32 lane = recompute(lane_id()), low = layout.group() * kChunkBytes - 1;
  const u32 first = place + layout.offset(warp_row() + lane / 4, warp_column() / 8) + lane % 4 * 4;
#pragma unroll
  for (int n = 0; n < kNTiles; ++n) {
    const u32 bytes = n * kChunkBytes, column = (first ^ (bytes & low)) + (bytes & ~low);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        store_shared(column + (m * 16 + h * 8) * layout.row_bytes(),
                     pack<config.element>(weights[m][n][2 * h], weights[m][n][2 * h + 1]));
  }
}

// What of the columns of a gradient is in the sums of this warp: `first` and those behind it. It has those from `own` on
// for itself, and the others with the share before.
struct Share {
  int first, own;
};
template <int padded_dim, int tiles>
__device__ inline Share share_of_warp(int part) {
  const int own = (part * kColumnGroups + static_cast<int>(column_group())) * tiles * 8;
  return {min(own, padded_dim - tiles * 8), own};
}

// The rows of a gradient that are this block's: through shared memory, where each warp has a place, in whole chunks.
template <int head_dim, int tiles>
__device__ inline void store_gradient(void* gradient, Int64 first, Int64 stride, const Sums<tiles>& sums, float scale,
                                      int row_lo, int row_end, Share columns, u32 staging) {
  const u32 lane = recompute(lane_id());
  const int end = min(columns.first + tiles * 8, head_dim);
  if constexpr (config.output == Element::f32) {
    float* out = static_cast<float*>(gradient) + first;
    for_each<tiles>([&](int m, int n, int e) {
      const int row = row_lo + warp_row() + m * 16 + e / 2 * 8 + lane / 4;
      const int column = columns.first + n * 8 + lane % 4 * 2 + e % 2;
      if (row < row_end && column >= columns.own && column < end) out[row * stride + column] = sums[m][n][e] * scale;
    });
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
                         pack<config.output>(sums[m][n][2 * h] * scale, sums[m][n][2 * h + 1] * scale));
        }
    __syncwarp();
    auto* out = static_cast<Bits<config.output>*>(gradient) + first;
    const int chunks = (end - columns.own) / 8;  // none: others have them all
    for (int i = lane; i < kRowsOfWarp * chunks; i += 32) {
      const int row = warp_row() + i / chunks, chunk = columns.own / 8 + i % chunks;
      if (row_lo + row < row_end)
        store_chunk<config.copy_bytes>(out + (row_lo + row) * stride + chunk * 8,
                                       load_shared(staging + layout.offset(row, chunk)));
    }
  }
}

// Four sums of a tile to memory, if they are wanted: a predicate of the instruction, since a branch around each would take
// longer than what it leaves out.
__device__ inline void add_to_memory(float* tile, bool wanted, const float (&sums)[4]) {
  float* at = tile + place_of_sum(lane_id(), 0);
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(
          at),
      "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3]), "r"(static_cast<u32>(wanted))
      : "memory");
#else
#pragma unroll
  for (int e = 0; e < 4; ++e)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p red.relaxed.gpu.global.add.f32 [%0], %1;\n}" ::"l"(at + e * 32),
        "f"(sums[e]), "r"(static_cast<u32>(wanted))
        : "memory");
#endif
}

// dQ += ds K, of all keys of the block and the columns of its part: those of a warp in turns, so that few sums are beside
// those of dK and dV.
__device__ inline void add_query_gradients(const KernelParams& params, const Sequence& seq, int q_lo, int part, u32 ds,
                                           u32 keys, float* dq_sums) {
  constexpr int kGroups = query_groups(config), kShares = dq_column_groups(config), kTiles = query_tiles(config);
  constexpr int kParts = gradient_parts(config, Side::keys), kColumns = share_of(padded_dim_qk(config), kParts),
                kPairs = share_of(kColumns, kShares) / 16, kAtOnce = kPairs < 2 ? kPairs : 2;
  const u32 lane = recompute(lane_id());
  const int group = warp_id() % kGroups, own = part * kColumns + warp_id() / kGroups * kPairs * 16,
            first = min(own, padded_dim_qk(config) - kPairs * 16), end = min((part + 1) * kColumns, config.head_dim_qk);
  const u32 ds_lane = ds + kLayout.ds.offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  // Parts begin at multiples of their columns, and warps within them at multiples of theirs.
  constexpr int kGroup = kLayout.rows_qk.group();
  const ShareOperands<kPairs * 2 % kGroup == 0 && (kParts == 1 || kColumns / 8 % kGroup == 0)> operands(
      keys, kLayout.rows_qk, first);
  // Share by share: whether all have as many columns is known, and then all are wanted.
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
        load_matrices_transposed(a[m], along(ds_lane, kLayout.ds, group * kTiles + m) + down(kLayout.ds, step));
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

__device__ inline HeadSums head_sums_of(const KernelParams& params, float* data) {
  return {data, (params.k_len + kBlockRows - 1) / kBlockRows, config.warps};
}
// What comes before backward_prepare() ...
__device__ inline void begin_parameters(const KernelParams& params, float* head_sums = nullptr) {
  zero_gradients<kPrepareThreads, false>(params);
  if constexpr (Variant::kHeadReads > 0) zero_head_sums<kPrepareThreads>(params, head_sums_of(params, head_sums));
}
// ... and a launch after all others.
__device__ inline void end_parameters(const KernelParams& params, const float* sink_rows, float* head_sums = nullptr) {
  sum_gradients(params, sink_rows, head_sums_of(params, head_sums));
}

// Each warp has its own rows, and its own columns, of the places of K and V, or Q and dO, which nobody reads any more.
template <Side side, int tiles_qk, int tiles_v>
__device__ inline void store_gradients(const KernelParams& params, const BlockState& block, const Sums<tiles_qk>& d_qk,
                                       const Sums<tiles_v>& d_v, Share share_qk, Share share_v, u32 rows_qk,
                                       u32 rows_v) {
  const Sequence& seq = block.seq;
  if constexpr (side == Side::keys) {
    store_gradient<config.head_dim_qk>(params.dk, key_begin(params.dk_stride, seq), params.dk_stride.token, d_qk,
                                       config.scale, block.row_lo, seq.k_len, share_qk, rows_qk);
    store_gradient<config.head_dim_v>(params.dv, key_begin(params.dv_stride, seq), params.dv_stride.token, d_v, 1.0f,
                                      block.row_lo, seq.k_len, share_v, rows_v);
  } else {
    store_gradient<config.head_dim_qk>(params.dq, query_row(params.dq_stride, seq, seq.h, 0), params.dq_stride.token,
                                       d_qk, config.scale, block.row_lo, seq.q_len, share_qk, rows_qk);
  }
}

template <Side side>
__device__ inline void backward_gradients(const KernelParams& params, const RowFacts* facts, float* dq_sums = nullptr,
                                          float* head_sums = nullptr) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kDimQk = padded_dim_qk(config), kDimV = padded_dim_v(config), kParts = gradient_parts(config, side);
  constexpr int kTilesQk = share_of(kDimQk, kParts * kColumnGroups) / 8,
                kTilesV = share_of(kDimV, kParts * kColumnGroups) / 8;
  constexpr bool kShared = kColumnGroups > 1 || config.dq == DqSums::atomics;
  const u32 memory = shared_address(shared), rows_qk = memory, rows_v = memory + kLayout.rows_v_offset;
  const u32 shared_p = memory + kLayout.p_offset, shared_ds = memory + kLayout.ds_offset;
  BlockState& block = *reinterpret_cast<BlockState*>(shared + kLayout.state_offset);
  if (!begin_rows<side>(params, block, memory)) return;
  const int part = blockIdx.x % kParts;
  const Share share_qk = share_of_warp<kDimQk, kTilesQk>(part), share_v = share_of_warp<kDimV, kTilesV>(part);

  Sums<kTilesQk> d_qk = {};
  Sums<kTilesV> d_v = {};
  constexpr int kHeads = side == Side::keys ? group_size(config) : 1;
  constexpr bool kOfParameters = config.gradients > 0 && side == Side::keys;
  OfParameters of_parameters;
#pragma unroll 1
  for (int head = 0; head < kHeads; ++head) {
    begin_head<side>(params, block, facts, head);
    Facts<side> of_queries;
    if constexpr (side == Side::queries) read_facts(of_queries.of_rows, block);
    ColumnCopies<side> copies{params, block, memory};
    copies.begin();
#pragma unroll 1
    for (int tile = block.first_tile; tile <= block.last_tile; tile = visible_tile<side>(params, block, tile + 1)) {
      const u32 columns_qk = copies.await(), columns_v = columns_qk + kLayout.columns_qk.bytes();
      of_queries.of_columns = copies.facts_place();
      const int column_lo = tile * kBlockColumns;
      Scores p, slope, ds;
      multiply_rows<kDimQk>(p, rows_qk, kLayout.rows_qk, columns_qk, kLayout.columns_qk);
      const bool mixed = is_mixed(block, tile);
      if constexpr (kOfParameters) {
        multiply_rows<kDimV>(ds, rows_v, kLayout.rows_v, columns_v, kLayout.columns_v);
        make_all_gradients(p, ds, of_parameters, params, block, column_lo, mixed, of_queries, part == 0);
        if constexpr (kColumnGroups > 1) share(p, shared_p);
      } else {
        if constexpr (config.has_score) make_logits<side>(p, slope, params, block.seq, block.row_lo, column_lo);
        if (mixed) hide<side>(p, params, block.seq, block.row_lo, column_lo);
        make_probabilities<side>(p, of_queries);
        if constexpr (kColumnGroups > 1 && side == Side::keys) share(p, shared_p);
        multiply_rows<kDimV>(ds, rows_v, kLayout.rows_v, columns_v, kLayout.columns_v);
        make_score_gradients<side>(ds, p, slope, mixed, of_queries);
      }
      if constexpr (kShared) {
        share(ds, shared_ds);
        __syncthreads();
      }
      if constexpr (side == Side::keys) add_products<kDimV>(d_v, p, shared_p, columns_v, share_v.first);
      add_products<kDimQk>(d_qk, ds, shared_ds, columns_qk, share_qk.first);
      if constexpr (config.dq == DqSums::atomics)
        add_query_gradients(params, block.seq, column_lo, part, shared_ds, rows_qk, dq_sums);
      copies.release();
    }
    if constexpr (kOfParameters) {
      if (part == 0)
        of_parameters.end_head(params, block.seq, first_place<side>(block.row_lo, 0).k, head_sums_of(params, head_sums),
                               block.row_lo / kBlockRows, static_cast<int>(warp_id()));
    }
    copies.end();
  }

  store_gradients<side>(params, block, d_qk, d_v, share_qk, share_v, rows_qk, rows_v);
}

}  // namespace flashjit
