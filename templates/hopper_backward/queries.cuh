// Makes dQ in a launch of its own, which gives the same bits in every run, and adds nothing up in memory. A block has
// two warpgroups of 64 queries each and goes over the key tiles that they see, while dQ stays in registers. This is the
// vocabulary; loop.gen.cuh determines what the roles of a block do, and in which order.
#pragma once

#include "templates/hopper_backward/output.cuh"
#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/producer.cuh"
#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

constexpr DqLayout kDq = dq_layout(config);

struct DqMemory {
  u32 base;
  __device__ u32 q() const { return base; }
  __device__ u32 d_o() const { return base + kDq.d_o_offset; }
  __device__ u32 k(u32 stage) const { return base + kDq.k_offset + stage * kDq.k.bytes(); }
  __device__ u32 v(u32 stage) const { return base + kDq.v_offset + stage * kDq.v.bytes(); }
  __device__ u32 q_full() const { return base + kDq.barrier_offset; }
  __device__ u32 k_full(u32 stage) const { return base + kDq.barrier_offset + 8 + stage * 8; }
  __device__ u32 k_empty(u32 stage) const { return k_full(kDqStages + stage); }
  __device__ u32 v_full(u32 stage) const { return k_full(2 * kDqStages + stage); }
  __device__ u32 v_empty(u32 stage) const { return k_full(3 * kDqStages + stage); }
  __device__ u32 dropout_key() const { return base + kDq.dropout_offset; }
};

// 128 queries of a head, and the key tiles that some of them see, which are visited from the last to the first. In full
// tiles all of the queries see all keys.
struct DqItem {
  Sequence seq;
  int q_lo;
  int first, last, full_first, full_last;
};
__device__ inline DqItem dq_item(const KernelParams& params, int block) {
  const TileOfHead its =
      tile_of_block(params, gridDim.x - 1 - block, gridDim.x, config.heads_q, params.heads_per_group);
  DqItem item;
  if constexpr (kPacked) {
    const NumberedTile numbered = numbered_tile(params.offsets_q, params.batch, kDqTileQ, its.tile);
    item.seq = sequence_of(params, numbered.b, its.head);
    item.q_lo = numbered.tile * kDqTileQ;
  } else {
    item.seq = sequence_of_tile(params, its, config.heads_q, 1);
    item.q_lo = its.tile * kDqTileQ;
  }
  const int q_hi = min(item.q_lo + kDqTileQ, item.seq.q_len) - 1;
  const int begin = Variant::kv_begin(params, item.seq, item.q_lo, q_hi),
            end = min(Variant::kv_end(params, item.seq, item.q_lo, q_hi), item.seq.k_len);
  item.first = begin / kDq.tile_kv;
  item.last = begin < end && item.q_lo <= q_hi ? (end - 1) / kDq.tile_kv : item.first - 1;
  item.full_first = (Variant::full_begin(params, item.seq, item.q_lo, q_hi) + kDq.tile_kv - 1) / kDq.tile_kv;
  item.full_last = Variant::full_end(params, item.seq, item.q_lo, q_hi) / kDq.tile_kv - 1;
  return item;
}

// Returns the visible tile at or before `tile`, stepping over tiles in a hole of the mask.
__device__ inline int visible_key_tile(const KernelParams& params, const DqItem& item, int tile) {
  if constexpr (config.mask_has_holes) {
    const int q_hi = min(item.q_lo + kDqTileQ, item.seq.q_len) - 1;
    while (tile >= item.first && !Variant::may_see(params, item.seq, item.q_lo, q_hi, tile * kDq.tile_kv,
                                                   min((tile + 1) * kDq.tile_kv, item.seq.k_len) - 1))
      --tile;
  }
  return tile;
}

struct DqProducerState {
  const KernelParams& params;
  const TensorMaps& maps;
  const DqMemory& shared;
  const DqItem& item;
};

// Holds scores that are not transposed: a thread has two queries and two neighbouring keys of every eight.
struct DqConsumerState {
  static constexpr int kDqScores = kDq.tile_kv / 2, kKeySteps = kDq.tile_kv / 16;
  const KernelParams& params;
  const DqMemory& shared;
  const DqItem& item;
  const char* row_terms;
  u32 warpgroup;
  u32 rows;  // This warpgroup's first row, counted from the block's first.
  // Row terms of this thread's queries; -LSE is in units of an exponent of 2.
  float minus_lse[2], minus_d[2];

  float dq[config.head_dim_qk / 2];
  float s[kDqScores], dp[kDqScores];
  u32 ds[kKeySteps][4];
  TileNumbers kept[1][kKeySteps];

  __device__ u32 warpgroup_id() const { return warpgroup; }
  __device__ void begin_turn() const { Turns{warpgroup}.begin(); }
  __device__ void end_turn() const { Turns{warpgroup}.end(); }

  // Operands of products, by the stage that holds them.
  __device__ u32 own_queries() const { return descriptor(shared.q() + rows * kPanelWidth); }
  __device__ u32 own_d_o() const { return descriptor(shared.d_o() + rows * kPanelWidth); }
  __device__ u32 keys(u32 stage) const { return descriptor(shared.k(stage)); }
  __device__ u32 key_rows(u32 stage) const { return descriptor(shared.k(stage), kDq.k.panel_bytes()); }
  __device__ u32 values(u32 stage) const { return descriptor(shared.v(stage)); }

  __device__ int query(int h) const {
    const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
    return item.q_lo + static_cast<int>(rows + thread / 32 * 16 + thread % 32 / 4) + 8 * h;
  }

  __device__ void read_terms() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = min(query(h), item.seq.q_len - 1);
      const auto* terms = reinterpret_cast<const uint4*>(
          row_terms + workspace_tile(params, item.seq, item.seq.h, q / kTileQ) * row_terms_bytes(config));
      if constexpr (lse_is_float(config)) {
        minus_lse[h] = reinterpret_cast<const float*>(terms)[q % kTileQ];
      } else {
        const uint4 lse = terms[q % kTileQ];
        minus_lse[h] = sum_of_split(lse.x, lse.y) * kExponentScale;
      }
      if constexpr (kDrops) {
        minus_d[h] = reinterpret_cast<const float*>(terms + kTileQ)[q % kTileQ];
      } else {
        const uint4 d = terms[kTileQ + q % kTileQ];
        minus_d[h] = sum_of_split(d.x, d.y);
      }
    }
  }

  __device__ static int first_key(int tile) {
    return tile * kDq.tile_kv + static_cast<int>(recompute(threadIdx.x) % 4) * 2;
  }
  __device__ bool hides(int tile, int i) const {
    const int k = first_key(tile) + i / 4 * 8 + i % 2, q = query(i % 4 / 2);
    return k >= item.seq.k_len || q >= item.seq.q_len || !Variant::visible(params, item.seq, q, k);
  }

  // Turns S into P times the derivatives of the scores.
  __device__ void make_probabilities(int tile) {
    const bool mixed = tile < item.full_first || tile > item.full_last;
    if constexpr (config.has_score) {
      HiddenBits<kDqScores> hidden;
      if (mixed) hidden.find([&](int i) { return hides(tile, i); });
#pragma unroll
      for (int i = 0; i < kDqScores; ++i) {
        const int k = min(first_key(tile) + i / 4 * 8 + i % 2, item.seq.k_len - 1);
        const auto both = Variant::score_and_slope(params, item.seq, s[i] * config.scale,
                                                   min(query(i % 4 / 2), item.seq.q_len - 1), k);
        const float p = exp2_approx(both.score * kLog2e + minus_lse[i % 4 / 2]) * both.slope;
        s[i] = hidden[i] ? 0.0f : p;
      }
      return;
    }
    if (mixed) {
      HiddenBits<kDqScores> hidden;
      hidden.find([&](int i) { return hides(tile, i); });
      hide(s, hidden);
    }
#pragma unroll
    for (int i = 0; i < kDqScores; ++i) s[i] = exp2_approx(s[i] * kExponentScale + minus_lse[i % 4 / 2]);
  }

  // Draws which weights of a tile are kept.
  __device__ void draw(int tile) {
    const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup, lane = thread % 32;
    const DropoutCalls<WeightRows::queries> calls = {load_dropout_key(shared.dropout_key()),
                                                     static_cast<u32>(item.seq.b), static_cast<u32>(item.seq.h), lane};
    calls.draw(kept, (static_cast<u32>(item.q_lo) + rows) / 16 + thread / 32, tile * kKeySteps);
  }
  __device__ void drop_dp() {
#pragma unroll
    for (int i = 0; i < kDqScores; ++i)
      dp[i] = keep(dp[i], mask_of_weight<WeightRows::queries, config.dropped>(kept[0][i / 8], i % 8 / 2, i % 2));
  }

  // Makes dS from S, which holds P times the derivatives of the scores.
  __device__ void make_ds() {
#pragma unroll
    for (int i = 0; i < kDqScores; i += 2) {
      const float d = minus_d[i % 4 / 2];
      ds[i / 8][i % 8 / 2] = pack<config.element>(s[i] * (dp[i] + d), s[i + 1] * (dp[i + 1] + d));
    }
  }
  __device__ void store_dq() const {
    store_rows<config.output_dq, config.head_dim_qk>(params.dq, query_row(params.dq_stride, item.seq, item.seq.h, 0),
                                                     params.dq_stride.token, item.q_lo + static_cast<int>(rows),
                                                     item.seq.q_len, config.scale * kDropoutFactor, dq);
  }
};

}  // namespace flashjit
