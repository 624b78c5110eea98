// Forward attention for every GPU from sm_80 on: cp.async copies, ldmatrix, mma.sync, online softmax.
//
// One block computes one query tile of one head. Each warp owns rows_per_warp(config) query rows and sees all keys, so
// softmax needs no exchange between warps. KV tiles are visited from the last to the first: with a causal mask the
// tiles that need mask code come first, and the rest of the loop is free of it.
#pragma once

#include "templates/device.cuh"
#include "templates/dropout.cuh"
#include "templates/score_and_mask.cuh"
#include "templates/sync/products.cuh"
#include "templates/sync/softmax.cuh"

namespace flashjit {

// P times scales of single keys may be too small for fp16 or e4m3, or too large. O is then divided by units, one for
// each row.
constexpr bool kHasUnits = has_key_scales(config) && config.element != Element::bf16;

// The query and the key of this thread's first score. They are derived again at every call: otherwise the limits of
// every row, with which a mask compares, would be held in registers across the loop.
struct Corner {
  int q, k;
};
__device__ inline Corner first_element(int q_lo, int k_lo) {
  const u32 thread = recompute(threadIdx.x);
  return {static_cast<int>(q_lo + thread / 32 * rows_per_warp(config) + thread % 32 / 4),
          static_cast<int>(k_lo + thread % 4 * 2)};
}

// Sets scores to -infinity where a long mask hides the key.
__device__ inline void hide_keys(Scores& s, const KernelParams& params, const Sequence& seq, const Corner& corner) {
  constexpr int kWordTiles = kWordKeys / 8;
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int first = 0; first < kNTiles; first += kWordTiles) {
        const int q = min(corner.q + i * 16 + h * 8, seq.q_len - 1);
        const u32 bits = evaluate_mask(params, seq, q, corner.k + first * 8, kTileKv - first * 8);
#pragma unroll
        for (int j = first; j < kNTiles && j < first + kWordTiles; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            if (!(bits >> ((j - first) * 2 + c) & 1)) s[i][j][2 * h + c] = -kInfinity;
          }
      }
}

// Returns the factor that turns products with a query into scores. Where blocks of queries have scales, a tile may hold
// several.
__device__ inline float row_scale(const KernelParams& params, const BlockState& block, int q) {
  if constexpr (!is_scaled(config)) return config.scale;
  else if constexpr (has_scaled_queries(config) && config.scale_block > 0) return score_scale(params, block.seq, q);
  else return block.score_scale;
}

// Applies the score function, and then sets scores of hidden keys to -infinity. Keys at or behind k_len are read as the
// last key, because the score function may load from a tensor that ends there.
__device__ inline void apply_score_and_mask(Scores& s, const KernelParams& params, const BlockState& block, int k_lo,
                                            bool mixed) {
  const Sequence& seq = block.seq;
  Corner corner = first_element(block.q_lo, k_lo);
  if constexpr (!kScaleFolded) {
#pragma unroll
    for (int i = 0; i < kMTiles; ++i)
#pragma unroll
      for (int j = 0; j < kNTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int q = min(corner.q + i * 16 + e / 2 * 8, seq.q_len - 1);
          s[i][j][e] *= row_scale(params, block, q);
          if constexpr (has_key_scales(config)) {
            const int key = min(corner.k + j * 8 + e % 2, block.end - 1);
            s[i][j][e] *= key_scale(params, params.scale_k, params.scale_k_stride, seq, key);
          }
          if constexpr (config.has_score) {
            const int k = min(corner.k + j * 8 + e % 2, seq.k_len - 1);
            s[i][j][e] = Variant::score(FullRange(), params, seq, s[i][j][e], q, k);
          }
        }
  }
  if (!mixed) return;
  corner = first_element(block.q_lo, k_lo);
  if constexpr (config.mask_is_long) {
    hide_keys(s, params, seq, corner);
  } else {
#pragma unroll
    for (int i = 0; i < kMTiles; ++i)
#pragma unroll
      for (int j = 0; j < kNTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int q = min(corner.q + i * 16 + e / 2 * 8, seq.q_len - 1);
          const int k = corner.k + j * 8 + e % 2;
          if (k >= seq.k_len || (config.has_mask && !Variant::visible(params, seq, q, k))) s[i][j][e] = -kInfinity;
        }
  }
}

__device__ inline void scale_output(float (&o)[kOTiles][4], int half, float factor) {
#pragma unroll
  for (int j = 0; j < kOTiles; ++j) {
    o[j][2 * half] *= factor;
    o[j][2 * half + 1] *= factor;
  }
}

// The rare part of a softmax step: references rise to the maximum, and sums and O are rescaled. Returns whether the
// references have been subtracted from the scores already: a large reference must be subtracted, exactly, before scores
// are scaled.
__device__ inline bool raise_references(Scores& s, SoftmaxRows<kMTiles>& rows, Output& o,
                                        const float (&maximum)[kMTiles][2]) {
  bool large = false;
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float factor = raise_reference(rows.reference[i][h], rows.sum[i][h], maximum[i][h]);
      large |= is_large(rows.reference[i][h]);
      if constexpr (kHasUnits) rows.unit[i][h] *= factor;
      else scale_output(o[i], h, factor);
    }
  if (!__any_sync(0xffffffff, large)) return false;
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float reference = rows.reference[i][h] == -kInfinity ? 0.0f : rows.reference[i][h];
#pragma unroll
      for (int j = 0; j < kNTiles; ++j) {
        s[i][j][2 * h] -= reference;
        s[i][j][2 * h + 1] -= reference;
      }
    }
  return true;
}

// One step of the online softmax turns scores into P. `top` collects the true maximum when it is an output.
__device__ inline void softmax_step(Scores& s, SoftmaxRows<kMTiles>& rows, Output& o, float (&top)[kMTiles][2]) {
  float maximum[kMTiles][2];
  bool rose = false;
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
      for (int j = 1; j < kNTiles; ++j) x = fmaxf(x, fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
      maximum[i][h] = quad_max(x);
      if constexpr (config.max_logit) top[i][h] = fmaxf(top[i][h], maximum[i][h]);
      rose |=
          maximum[i][h] > rows.reference[i][h] + kRescaleThreshold / kLog2Scale || fabsf(maximum[i][h]) > kLargeScore;
    }
  // The whole warp decides together, because a branch that diverges would serialise the loop over O.
  bool subtracted = false;
  if (__any_sync(0xffffffff, rose)) subtracted = raise_references(s, rows, o, maximum);
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool nothing = subtracted || rows.reference[i][h] == -kInfinity;
      const float offset = (nothing ? 0.0f : rows.reference[i][h] * kLog2Scale) - kWeightExponent;
#pragma unroll
      for (int j = 0; j < kNTiles; ++j)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          s[i][j][e] = exp2_approx(s[i][j][e] * kLog2Scale - offset);
          rows.sum[i][h] += s[i][j][e];
        }
    }
}

// Divides P by the units of its rows. A unit is about the largest number of a row so far, relative to its reference, so
// halves have room above it and digits below. Units rise rarely, as references do.
__device__ inline void divide_by_units(Scores& p, SoftmaxRows<kMTiles>& rows, Output& o) {
  // One over the least unit is a normal number, and e4m3 ends at 448.
  constexpr float kLeastUnit = 0x1p-100f, kRoom = 256.0f;
  float largest[kMTiles][2];
  bool rose = false;
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x = 0;
#pragma unroll
      for (int j = 0; j < kNTiles; ++j) x = fmaxf(x, fmaxf(fabsf(p[i][j][2 * h]), fabsf(p[i][j][2 * h + 1])));
      largest[i][h] = quad_max(x);
      rose |= largest[i][h] > rows.unit[i][h] * kRoom;
    }
  const bool raise = __any_sync(0xffffffff, rose);
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& unit = rows.unit[i][h];
      if (raise) {
        const float power = __uint_as_float(__float_as_uint(largest[i][h]) & 0x7f800000) * kWeightUnit;
        const float raised = fmaxf(fmaxf(power, unit), kLeastUnit);
        scale_output(o[i], h, unit / raised);
        unit = raised;
      }
      const float inverse = unit > 0 ? 1.0f / unit : 0.0f;
#pragma unroll
      for (int j = 0; j < kNTiles; ++j) {
        p[i][j][2 * h] *= inverse;
        p[i][j][2 * h + 1] *= inverse;
      }
    }
}

// Multiplies P by the scales of V, where each key has its own.
__device__ inline void apply_value_scales(Scores& p, const KernelParams& params, const BlockState& block,
                                          SoftmaxRows<kMTiles>& rows, Output& o, int k_lo) {
  const Corner corner = first_element(block.q_lo, k_lo);
#pragma unroll
  for (int j = 0; j < kNTiles; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int key = min(corner.k + j * 8 + c, block.end - 1);
      const float scale = key_scale(params, params.scale_v, params.scale_v_stride, block.seq, key);
#pragma unroll
      for (int i = 0; i < kMTiles; ++i) {
        p[i][j][c] *= scale;
        p[i][j][2 + c] *= scale;
      }
    }
  if constexpr (kHasUnits) divide_by_units(p, rows, o);
}

// Draws which weights are dropped.
__device__ inline void draw(Kept& kept, const BlockState& block, u32 key, int k_lo) {
  const u32 thread = recompute(threadIdx.x), lane = thread % 32;
  const DropoutCalls<WeightRows::queries> calls = {load_dropout_key(key), static_cast<u32>(block.seq.b),
                                                   static_cast<u32>(block.seq.h), lane};
  calls.draw(kept, static_cast<u32>(block.q_lo) / 16 + thread / 32 * kMTiles, static_cast<u32>(k_lo) / 16);
}

// With accumulate: the shares that O of earlier calls has in rows. A share below 0 means that the row keeps the earlier
// O.
struct EarlierShares {
  float of[kMTiles][2];
};
// Finishes O and LSE, except for the share of earlier calls in O.
__device__ inline float continue_with(const KernelParams& params, Int64 row, float reference, float sum,
                                      float (&o)[kOTiles][4], int h) {
  const Continued c = continue_row(params, row, reference, sum);
  __syncwarp(0xfu << (lane_id() & ~3));
  if (c.keeps) return -1.0f;
  if (lane_id() % 4 == 0) params.lse[row] = c.lse;
  scale_output(o, h, c.own);
  return c.before;
}

// Finishes row sums, the sink, LSE and maximum, and scales O to its final value.
__device__ inline void finish_rows(const KernelParams& params, const BlockState& block, SoftmaxRows<kMTiles>& rows,
                                   Output& o, const float (&top)[kMTiles][2], EarlierShares& earlier) {
  const Sequence& seq = block.seq;
  const int q_row = block.q_lo + warp_id() * rows_per_warp(config) + lane_id() / 4;
#pragma unroll
  for (int i = 0; i < kMTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = quad_sum(rows.sum[i][h]) * kWeightUnit;
      // A row that sees no key has a reference of -infinity and a sum of zero.
      float reference = rows.reference[i][h] * kNaturalScale;
      const float scale = add_sink(params, seq.h, reference, sum);
      const float unit = kHasUnits ? rows.unit[i][h] : value_scale_if_any(params, seq);
      const float inverse = sum == 0.0f ? 0.0f : scale * kDropoutFactor * kWeightUnit / sum * unit;
      scale_output(o[i], h, inverse);

      const int q = q_row + i * 16 + h * 8;
      if constexpr (config.accumulate) {
        if (q < seq.q_len)
          earlier.of[i][h] = continue_with(params, result_row(params, seq, q), reference, sum, o[i], h);
        continue;
      }
      if (lane_id() % 4 != 0 || q >= seq.q_len) continue;
      const Int64 row = result_row(params, seq, q);
      store_row_results(params, row, reference, sum, top[i][h]);
    }
}

// Stores O: it is staged in shared memory, where each warp touches only its own rows, and leaves in whole 16-byte
// chunks.
__device__ inline void store_output(const KernelParams& params, const BlockState& block, Output& o,
                                    const EarlierShares& earlier, u32 staging) {
  const Sequence& seq = block.seq;
#pragma unroll
  for (int i = 0; i < kMTiles; ++i) sort_columns(o[i]);
  const int q_lo = block.q_lo;
  const int warp_row = warp_id() * rows_per_warp(config);
  const Int64 base = query_row(params.o_stride, seq, seq.h, q_lo) + block.column;
  if constexpr (config.output == Element::f32) {
    float* out = static_cast<float*>(params.o) + base;
#pragma unroll
    for (int i = 0; i < kMTiles; ++i)
#pragma unroll
      for (int j = 0; j < kOTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = warp_row + i * 16 + lane_id() / 4 + e / 2 * 8, column = first_column(j) + e % 2;
          if (q_lo + row >= seq.q_len || column >= kColumns) continue;
          float* at = out + row * params.o_stride.token + column;
          if constexpr (config.accumulate) {
            const float before = earlier.of[i][e / 2];
            if (before >= 0.0f || before != before) *at = before == 0.0f ? o[i][j][e] : fmaf(*at, before, o[i][j][e]);
          } else {
            *at = o[i][j][e];
          }
        }
  } else {
#pragma unroll
    for (int i = 0; i < kMTiles; ++i)
#pragma unroll
      for (int j = 0; j < kOTiles; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = warp_row + i * 16 + lane_id() / 4 + h * 8, column = first_column(j);
          store_shared(staging + kLayout.o.offset(row, column / 8) + column % 8 * 2,
                       pack<config.output>(o[i][j][2 * h], o[i][j][2 * h + 1]));
        }
    __syncwarp();
    auto* out = static_cast<Bits<config.output>*>(params.o) + base;
    constexpr int kOfChunk = kLayout.o.chunk_columns(), kChunks = kColumns / kOfChunk;
    constexpr int kWarpChunks = rows_per_warp(config) * kChunks;
#pragma unroll 4
    for (int index = lane_id(); index < kWarpChunks; index += 32) {
      const int row = warp_row + index / kChunks, chunk = index % kChunks;
      if (q_lo + row < seq.q_len) {
        store_chunk<config.copy_bytes>(out + row * params.o_stride.token + chunk * kOfChunk,
                                       load_shared(staging + kLayout.o.offset(row, chunk)));
      }
    }
  }
}

// Q passes through the memory of K and V, which may be overwritten only when every warp has read its rows.
__device__ inline void hold_queries(HeldQueries& held, u32 queries) {
  wait_copies<0>();
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kHeldSteps; ++step) load_queries(held[step], query_lane(queries), step);
  __syncthreads();
}

__device__ inline void sync_forward(const KernelParams& params) {
  extern __shared__ __align__(128) unsigned char shared[];
  BlockState& block = *reinterpret_cast<BlockState*>(shared + kLayout.block_offset);
  const u32 base = shared_address(shared);
  const u32 queries = base + kLayout.q_offset, keys = base + kLayout.k_offset, values = base + kLayout.v_offset;
  if (!begin_tile(params, block, queries)) return;
  int tile = visible_tile(params, block, block.last_tile);

  HeldQueries held;
  if constexpr (kQueriesInRegisters) hold_queries(held, queries);
  KeyValueCopies copies = {params, block, keys, values};
  copies.begin(tile);

  SoftmaxRows<kMTiles> rows;
  rows.clear();
  float top[kMTiles][2];
  Output o;
#pragma unroll
  for (int i = 0; i < kMTiles; ++i) {
    top[i][0] = top[i][1] = -kInfinity;
#pragma unroll
    for (int j = 0; j < kOTiles; ++j) o[i][j][0] = o[i][j][1] = o[i][j][2] = o[i][j][3] = 0;
  }
  const u32 q_lane = query_lane(queries), k_lane = key_lane(keys), v_lane = value_lane(values);

#pragma unroll 1
  while (tile >= block.first_tile) {
    copies.await_keys(tile);
    Scores s;
    compute_scores(s, held, q_lane, recompute(k_lane + copies.slot * kLayout.k.bytes()));

    const int next = visible_tile(params, block, tile - 1);
    copies.await_values(next);
    const int k_lo = block.number_of(tile) * kTileKv;
    apply_score_and_mask(s, params, block, k_lo, is_mixed(block, tile));
    softmax_step(s, rows, o, top);
    if constexpr (has_key_scales(config)) apply_value_scales(s, params, block, rows, o, k_lo);
    Kept kept;
    if constexpr (kDrops) draw(kept, block, base + kLayout.dropout_offset, k_lo);
    accumulate_output(o, s, kept, recompute(v_lane + copies.slot * kLayout.v.bytes()));
    copies.advance();
    tile = next;
  }

  EarlierShares earlier;
  finish_rows(params, block, rows, o, top, earlier);
  // O is staged in the place of Q, or of K and V. Other warps may still read there, and when no tile was visible, other
  // threads' copies of Q may still be on their way.
  wait_copies<0>();
  __syncthreads();
  store_output(params, block, o, earlier, base + kLayout.o_offset);
}

}  // namespace flashjit
