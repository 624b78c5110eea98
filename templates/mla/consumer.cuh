// The consumers' vocabulary: the registers of a thread that computes, and the functions that lines of loop.gen.cuh
// call. loop.gen.cuh determines what the two warpgroups do, and in which order.
//
// O of 64 rows is 128 KB, so two warpgroups share it, each with half the columns. Tiles of keys belong to them by
// turns: one warpgroup computes S of a tile and its softmax, and hands P to the other through shared memory, and both
// add P V of their columns. So the softmax of one runs beside the products of the other, and K is read once for both of
// its uses.
#pragma once

#include "matrix.gen.cuh"
#include "templates/mla/split_tiles.cuh"
#include "templates/mla/queries.cuh"
#include "templates/mla/softmax.cuh"

namespace flashjit {

// With products of 8 bits: the steps of descriptors to the columns behind V in Q and K, and to the next columns of V^T.
constexpr u32 kQueriesOfTail = kTailPanel * kLayout.q.panel_bytes() / 16, kKeysOfTail = kTailPanel * kPanelBytes / 16;
constexpr u32 kValuesStep = kMlaProductColumns * kPanelWidth / 16;

// A warpgroup. `half` is its half of O, and the slot of its own tiles. It is a template parameter, so that descriptors
// of matrix products stay in uniform registers.
template <u32 half>
struct ConsumerState {
  static constexpr u32 kOwn = half, kOther = 1 - half;
  const KernelParams& params;
  const SharedMemory& shared;
  float* parts;
  Turn turn = {};  // The turn of the next tile, among all tiles.

  Output o;
  Scores s;
  // With products of 8 bits: P V of some columns of a tile, while O takes in the columns before.
  ValueSums sums[2];
  Probabilities p;
  SoftmaxRows rows;

  __device__ void sync_group() const { sync_named(kGroupBarrier + half, 128); }
  __device__ static u32 warp_id() { return thread_number() % 128 / 32; }

  __device__ int next_tile(const Segment& segment, int tile) const {
    return config.mask_has_holes ? uniform(visible_tile(params, segment, tile)) : tile;
  }

  // Operands of products.
  __device__ u32 queries() const { return descriptor(recompute(shared.q())); }
  __device__ u32 keys() const { return descriptor(recompute(shared.k(half))); }
  __device__ u32 values(u32 stage) const {
    if constexpr (kMultipliesNarrow)
      return descriptor(recompute(shared.transposed(stage) + half * half_columns(config) * kPanelWidth));
    return descriptor(recompute(shared.v(stage, half)), kPanelBytes);
  }
  __device__ u32 weights(u32 stage) const { return descriptor(recompute(shared.p(stage))); }

  // Adds the products of a piece of this warpgroup's tile to the scores.
  template <int piece>
  __device__ void multiply_piece(u32 q, u32 k) {
    // The last panel of a narrow row has fewer steps.
    constexpr int kEnd = kMultipliesNarrow ? kTailPanel : kLayout.k.panels();
#pragma unroll
    for (int panel = panels_before(piece); panel < min(panels_before(piece + 1), kEnd); ++panel) {
      if (panel == 0) multiply_scores(s, q, k);
      else multiply_more_scores(s, q + panel * (kLayout.q.panel_bytes() / 16), k + panel * (kPanelBytes / 16));
    }
  }

  // Threads that copy do not wait for their copies, so the fence that lets products see them is made here.
  __device__ static void await_and_fence(u32 barrier, u32 parity) {
    wait_barrier(barrier, parity);
    fence_async_proxy();
  }

  // O takes in a product of some of its columns.
  template <int piece>
  __device__ void add_product(const ValueSums& product) {
#pragma unroll
    for (int i = 0; i < kValueSums; ++i) o[piece * kValueSums + i] += product[i];
  }

  // Waits for the pieces of this warpgroup's columns. It waits for no other piece of the other warpgroup's tile,
  // because such a piece may come again before this warpgroup has seen it.
  __device__ void await_full_half(u32 stage, u32 parity) const {
    constexpr int kPieces = kMlaPieces / kMlaConsumers;
#pragma unroll
    for (int piece = half * kPieces; piece < (half + 1) * kPieces; ++piece)
      wait_barrier(shared.full(stage, piece), parity);
    if constexpr (copies_rows(config)) fence_async_proxy();
  }

  // These give back this warp's columns of a slot, in clusters to the other block as well.
  __device__ void release(u32 stage) const {
    if (lane_id() == 0) arrive(shared.empty(stage, half));
  }
  __device__ void release_in_cluster(u32 stage) const {
    if (lane_id() != 0) return;
    arrive(shared.empty(stage, half));
    arrive_in(shared.empty(stage, half), cluster_rank() ^ 1);
  }
  // With products of 8 bits a warp gives back the keys of its own tile, in all blocks of a cluster, and values of any
  // tile.
  __device__ void release_keys() const { release_keys_of(shared, half); }
  __device__ void release_values(u32 stage) const {
    if (lane_id() == 0) arrive(shared.values_empty(stage));
  }
  // This warp has finished with the queries.
  __device__ void release_queries() const {
    if (lane_id() == 0) arrive(shared.queries_empty());
  }

  // Hides scores of keys whose rows do not exist. Zeros stand for such rows.
  __device__ void hide_absent() {
    const u32* seen = shared.seen(turn.count);
    const u32 low = seen[0], high = seen[1];
    if (uniform(low & high) == ~0u) return;
    const u32 first = lane_id() % 4 * 2, own_low = low >> first, own_high = high >> first;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const bool is_there = (j < 4 ? own_low : own_high) >> (j % 4 * 8 + c) & 1;
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (!is_there) s[4 * j + 2 * h + c] = -kInfinity;
      }
  }
  __device__ void score_and_hide(const Segment& segment, int tile) {
    apply_score_and_mask(s, rows, params, segment, tile, false);
    hide_absent();
  }

  // Writes zeros to this warpgroup's columns of V from the first key on that no query sees. These rows may hold
  // anything.
  __device__ void clear_hidden(int tile, int end, u32 stage) const {
    const int hidden = end - tile * kTileKv;
    if (hidden >= kTileKv) return;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 128; i < kHalfPanels * kTileKv * 8; i += 128) {
      if (i / 8 % kTileKv >= hidden) store_shared(shared.v(stage, half) + i * 16, make_uint4(0, 0, 0, 0));
    }
    fence_async_proxy();
    sync_group();
  }

  // References of the other warpgroup become this one's, if any of this warp's rows rose.
  __device__ void follow_references() {
    const u32 warp = warp_id();
    if (__any_sync(0xffffffff, shared.rose(kOther, warp) != 0)) {
      // This happens seldom. Without the wait, ptxas adds one and complains about it.
      wait_products<0>();
      float factor[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        factor[h] = shared.factor(kOther, row_of_thread(h));
        rows.sum[h] *= factor[h];
        rows.reference[h] = shared.reference(row_of_thread(h));
      }
      rescale(o, factor);
    }
  }
  // Tells the other warpgroup the references of this one.
  __device__ void tell_references(bool rose, const float (&factor)[2]) const {
    const u32 warp = warp_id();
    if (lane_id() == 0) shared.rose(half, warp) = rose;
    if (rose && lane_id() % 4 == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        shared.factor(half, row_of_thread(h)) = factor[h];
        shared.reference(row_of_thread(h)) = rows.reference[h];
      }
    }
  }

  // Exchanges sums and largest scores. Both warpgroups end with the same references.
  __device__ void tell_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] = quad_sum(rows.sum[h]);
      if (lane_id() % 4 == 0) {
        shared.sum(half, row_of_thread(h)) = rows.sum[h];
        shared.top(half, row_of_thread(h)) = rows.top[h];
      }
    }
  }
  __device__ void take_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] += shared.sum(kOther, row_of_thread(h));
      rows.top[h] = fmaxf(rows.top[h], shared.top(kOther, row_of_thread(h)));
    }
  }

  // With accumulate: reads what earlier calls left of the rows. Both warpgroups read before either stores, because they
  // meet to exchange their sums.
  __device__ void read_earlier(const Segment& segment) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row(segment) + row_of_thread(h);
      const Row at = row_at(segment.seq, min(row, segment.seq.q_len * kGroup - 1));
      Sequence seq = segment.seq;
      seq.h = at.h;
      rows.earlier[h] = earlier_of<Earlier>(earlier_lse(params, result_row(params, seq, at.q)));
    }
  }

  // With accumulate: adds the O of earlier calls to a row of O. Several loads are under way together.
  __device__ void go_on_from(const float* there, int h, bool inside, float factor, float before) {
    constexpr int kEights = kOutputs / 4, kTogether = 8;
#pragma unroll
    for (int first = 0; first < kEights; first += kTogether) {
      float2 pairs[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        pairs[j] = earlier_pair(there + 8 * (first + j), before, inside && !(before < 0.0f));
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int i = 4 * (first + j) + 2 * h;
        o[i] = fmaf(pairs[j].x, before, o[i] * factor);
        o[i + 1] = fmaf(pairs[j].y, before, o[i + 1] * factor);
      }
    }
  }

  __device__ void store(const Segment& segment) {
    // The lane is found again, because tiles take all registers.
    const u32 lane = thread_number() % 32;
    const int column = static_cast<int>(half) * half_columns(config) + static_cast<int>(lane) % 4 * 2;
    const bool writes = half == 0 && lane % 4 == 0, whole = uniform(segment.part < 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row(segment) + row_of_thread(h);
      const bool inside = row < segment.seq.q_len * kGroup;
      const RowState state = {rows.reference[h], rows.sum[h] * kWeightUnit, rows.top[h], rows.earlier[h]};
      if (whole) {
        const Row at = row_at(segment.seq, inside ? row : segment.row_lo);
        const RowEnd end = finish_row(params, segment.seq, at, state, writes && inside);
        const float factor = end.own * kWeightUnit;
        const Int64 first = query_row(params.o_stride, segment.seq, at.h, at.q) + column;
        if constexpr (config.accumulate) {
          float* out = static_cast<float*>(params.o) + first;
          const float before = float_of(end.before);
          go_on_from(out, h, inside, factor, before);
          store_row(out, h, inside && !(before < 0.0f), [](float a, float b) { return make_float2(a, b); });
        } else if constexpr (config.output == Element::f32)
          store_row(static_cast<float*>(params.o) + first, h, inside,
                    [&](float a, float b) { return make_float2(a * factor, b * factor); });
        else
          store_row(static_cast<u16*>(params.o) + first, h, inside,
                    [&](float a, float b) { return pack<config.output>(a * factor, b * factor); });
      } else {
        const Int64 number = first_part_of(params, segment) + (kFixedParts ? segment.part_number : 0);
        float* part = parts + number * kPartFloats;
        const int of_tile = row - segment.row_lo;
        store_row(part + of_tile * kPartRow + column, h, inside,
                  [](float a, float b) { return make_float2(a * kWeightUnit, b * kWeightUnit); });
        if (writes && inside)
          *reinterpret_cast<float4*>(part + kTileRows * kPartRow + of_tile * kRowState) = words_of(state);
      }
    }
  }
  // A thread has two neighbouring columns of each eight, which `pair` makes one value of. It exchanges values with its
  // neighbour, so that an even lane has four columns of one eight, and an odd lane four of the next: stores of whole
  // sectors. Many values are exchanged before the first is stored: in a branch around each store ptxas computed its
  // address anew, 15 KB of code.
  template <class Stored, class Pair>
  __device__ void store_row(Stored* to, int h, bool inside, const Pair& pair) const {
    constexpr int kEights = kOutputs / 4,
                  // Registers do not suffice for more floats.
        kMost = sizeof(Stored) == 2 ? 32 : 16;
    constexpr int kTogether = kEights < kMost ? kEights : kMost;
    const bool odd = thread_number() % 2 != 0;
    to += odd ? 8 - 2 : 0;
#pragma unroll
    for (int first = 0; first < kEights; first += kTogether) {
      decltype(pair(0.0f, 0.0f)) pairs[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int i = 4 * (first + j) + 2 * h;
        pairs[j] = pair(o[i], o[i + 1]);
      }
#pragma unroll
      for (int j = 0; j < kTogether; j += 2) {
        const auto received = from_neighbour(odd ? pairs[j] : pairs[j + 1]);
        pairs[j] = odd ? received : pairs[j];
        pairs[j + 1] = odd ? pairs[j + 1] : received;
      }
      if (inside) {
#pragma unroll
        for (int j = 0; j < kTogether; j += 2) store_pairs(to + 8 * (first + j), pairs[j], pairs[j + 1]);
      }
    }
  }
  __device__ static u32 from_neighbour(u32 x) { return __shfl_xor_sync(0xffffffff, x, 1); }
  __device__ static float2 from_neighbour(float2 x) {
    return make_float2(__shfl_xor_sync(0xffffffff, x.x, 1), __shfl_xor_sync(0xffffffff, x.y, 1));
  }
  __device__ static void store_pairs(u16* to, u32 a, u32 b) { store_global(to, make_uint2(a, b)); }
  __device__ static void store_pairs(float* to, float2 a, float2 b) {
    *reinterpret_cast<float4*>(to) = make_float4(a.x, a.y, b.x, b.y);
  }
};
using FirstConsumerState = ConsumerState<0>;
using SecondConsumerState = ConsumerState<1>;

}  // namespace flashjit
