// Attention over a cache of latents, V being the first columns of K, for sm_90a: TMA copies, warpgroup matrix products.
//
// O of 64 rows is 128 KB: two warpgroups share it, each with half the columns. Tiles of keys belong to them in turn: one
// computes S of a tile and its softmax, hands P to the other through shared memory, and both add P V of their columns.
// So the softmax of one runs beside the products of the other. K is read once for both of its uses.
#pragma once

#include "matrix.gen.cuh"
#include "templates/decode/combine.cuh"
#include "templates/mla/producer.cuh"
#include "templates/mla/queries.cuh"
#include "templates/mla/softmax.cuh"

namespace flashjit {

// A warpgroup: `half` of O, and the place of the tiles that are its own. What follows from it is known to the compiler,
// so that descriptors of matrix products stay in uniform registers.
template <u32 half>
struct Consumer {
  static constexpr u32 kOther = 1 - half;
  const KernelParams& params;
  const SharedMemory& shared;
  float* parts;
  Turn turn = {};  // of the next tile of all

  Output o;
  Scores s;
  Probabilities p;
  SoftmaxRows rows;

  __device__ void sync_group() const { sync_named(kGroupBarrier + half, 128); }
  __device__ void sync_consumers() const { sync_named(kConsumersBarrier, kConsumerThreads); }

  __device__ int next_tile(const Segment& segment, int tile) const {
    return config.mask_has_holes ? uniform(visible_tile(params, segment, tile)) : tile;
  }

  // Zeros for this warpgroup's columns of V from the key on that no query sees: what lies there is not looked at.
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

  // This warpgroup's half of a tile is there. Of the other's tiles the pieces of the other half may come again before
  // this warpgroup has seen them.
  __device__ void await_half(u32 stage, u32 parity) const {
    constexpr int kPieces = kMlaPieces / kMlaConsumers;
#pragma unroll
    for (int piece = half * kPieces; piece < (half + 1) * kPieces; ++piece)
      wait_barrier(shared.full(stage, piece), parity);
  }

  // Of this warpgroup's tile, a batch for each piece as it comes.
  __device__ void issue_scores(u32 parity, int first, int end) {
    const u32 q = descriptor(recompute(shared.q())), k = descriptor(recompute(shared.k(half)));
#pragma unroll
    for (int piece = first; piece < end; ++piece) {
      wait_barrier(shared.full(half, piece), parity);
      begin_products();
#pragma unroll
      for (int panel = panels_before(piece); panel < panels_before(piece + 1); ++panel) {
        if (panel == 0) multiply_scores(s, q, k);
        else multiply_more_scores(s, q + panel * (kPlaces.q.panel_bytes() / 16), k + panel * (kPanelBytes / 16));
      }
      commit_products();
    }
  }
  __device__ void issue_output(u32 stage, bool adds) {
    const u32 v = descriptor(recompute(shared.v(stage, half)), kPanelBytes);
    multiply_output(o, p, v, adds);
    commit_products();
  }
  __device__ void issue_output_of_other(u32 stage) {
    const u32 v = descriptor(recompute(shared.v(stage, half)), kPanelBytes);
    multiply_output_of_other(o, descriptor(recompute(shared.p(stage))), v);
    commit_products();
  }

  // This warp is done with its columns of a place, in all blocks of the cluster.
  __device__ void release(u32 stage) const {
    if (lane_id() != 0) return;
    arrive(shared.empty(stage, half));
    if constexpr (kCluster > 1) arrive_in(shared.empty(stage, half), cluster_rank() ^ 1);
  }

  // P of the other's tile is there; this one's part of O follows its references.
  __device__ void follow(int tile, int end, u32 stage, u32 parity) {
    await_half(stage, parity);
    sync_named(kReadyBarrier + stage, kConsumerThreads);
    const u32 warp = recompute(threadIdx.x) % 128 / 32;
    if (__any_sync(0xffffffff, shared.rose(kOther, warp) != 0)) {
      wait_products<0>();  // seldom; else ptxas adds a wait that it complains about
      float factor[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        factor[h] = shared.factor(kOther, row_of_thread(h));
        rows.sum[h] *= factor[h];
        rows.reference[h] = shared.reference(row_of_thread(h));
      }
      rescale(o, factor);
    }
    clear_hidden(tile, end, stage);
  }

  // P of this warpgroup's tile is handed to the other one.
  __device__ void hand_over(bool rose, const float (&factor)[2]) {
    const u32 warp = recompute(threadIdx.x) % 128 / 32;
    if (lane_id() == 0) shared.rose(half, warp) = rose;
    if (rose && lane_id() % 4 == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        shared.factor(half, row_of_thread(h)) = factor[h];
        shared.reference(row_of_thread(h)) = rows.reference[h];
      }
    }
    sync_group();  // the other warps have read the panel of K that P takes
    store_probabilities(shared.p(half), p);
    fence_async_proxy();
    arrive_named(kReadyBarrier + half, kConsumerThreads);
  }

  __device__ void issue_tile_of_other(int tile, int end, bool follows = true) {
    if (follows) follow(tile, end, kOther, turn.parity());
    pin_registers(o);
    begin_products();
    issue_output_of_other(kOther);
  }
  __device__ void complete_output(u32 stage, bool issued = true) {
    wait_products<0>();
    pin_registers(o);
    if (issued) release(stage);
  }

  // Scores of a tile, and P V of the tile before, if `follows`, which is the other's. One warpgroup begins with the tile
  // before, the other one with its own scores: so this one's softmax runs beside the other one's scores, and that of the
  // other one beside its own products of the tile before. Where there is no tile before, what happens to lie there is
  // added, and own products replace it: code of its own for the first step would come from memory.
  __device__ void multiply(int before, int end, bool follows) {
    const u32 parity = Turn{turn.count + follows}.parity();
    if constexpr (half == 0) {
      issue_scores(parity, 0, 1);
      wait_products<1>();  // given back before the next pieces are waited for
      pin_registers(o);
      if (follows) release(kOther);
      issue_scores(parity, 1, kMlaPieces);
      wait_products<0>();
    } else {
      issue_scores(parity, 0, kMlaPieces);
      issue_tile_of_other(before, end, follows);
      wait_products<1>();
    }
    pin_registers(s);
    turn.count += follows;
  }

  // From the scores on. `follows`: P V of the tile before may still be under way.
  __device__ void finish(const Segment& segment, int end, bool follows, int tile, bool mixed) {
    if (mixed || !kScaleFolded) apply_score_and_mask(s, params, segment, tile, mixed);
    if (!follows) rows.begin(s);
    float factor[2];
    const bool rose = softmax_step(s, p, rows, factor);
    if constexpr (half == 1) {
      pin_fragments(p);  // or exponentials would wait for those products
      complete_output(kOther, follows);
    }
    if (rose) rescale(o, factor);
    clear_hidden(tile, end, half);
    pin_registers(o);
    begin_products();
    issue_output(half, follows);
    // Beside own products: beside the other one's scores shared memory has no time for P.
    hand_over(rose || !follows, factor);
    complete_output(half);
    ++turn.count;
  }

  __device__ void attend(const Segment& segment) {
    rows.clear();
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;
    const int last = uniform(segment.last_tile), end = uniform(segment.end);
    int before = next_tile(segment, uniform(segment.first_tile)), tile = before;
    if (before > last) return;
    bool follows = turn.stage() != half;
    if (follows) tile = next_tile(segment, before + 1);
#pragma unroll 1
    while (true) {
      if (half == 0 || tile > last) issue_tile_of_other(before, end, follows);
      if (tile > last) break;
      const bool mixed = is_mixed(segment, tile);
      multiply(before, end, follows);
      finish(segment, end, follows, tile, mixed);
      before = next_tile(segment, tile + 1);
      if (before > last) return;
      tile = next_tile(segment, before + 1);
      follows = true;
    }
    complete_output(kOther);  // the last tile is the other's
    ++turn.count;
  }

  // Sums and largest scores of both; both end with the same references.
  __device__ void join_rows() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] = quad_sum(rows.sum[h]);
      if (lane_id() % 4 == 0) {
        shared.sum(half, row_of_thread(h)) = rows.sum[h];
        shared.top(half, row_of_thread(h)) = rows.top[h];
      }
    }
    sync_consumers();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] += shared.sum(kOther, row_of_thread(h));
      rows.top[h] = fmaxf(rows.top[h], shared.top(kOther, row_of_thread(h)));
    }
  }

  __device__ void store(const Segment& segment) const {
    const u32 lane = recompute(threadIdx.x) % 32;  // not kept while tiles take all registers
    const int column = static_cast<int>(half) * half_columns(config) + static_cast<int>(lane) % 4 * 2;
    const bool writes = half == 0 && lane % 4 == 0, whole = uniform(segment.part < 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row(segment) + row_of_thread(h);
      const bool inside = row < segment.seq.q_len * kGroup;
      const RowState state = {rows.reference[h], rows.sum[h], rows.top[h]};
      if (whole) {
        const Row at = row_at(segment.seq, inside ? row : segment.row_lo);
        const float factor = finish_row(params, segment.seq, at, state, writes && inside);
        const Int64 first = query_row(params.o_stride, segment.seq, at.h, at.q) + column;
        if constexpr (config.output == Element::f32)
          store_row(static_cast<float*>(params.o) + first, h, inside,
                    [&](float a, float b) { return make_float2(a * factor, b * factor); });
        else
          store_row(static_cast<u16*>(params.o) + first, h, inside,
                    [&](float a, float b) { return pack<config.output>(a * factor, b * factor); });
      } else {
        float* part = parts + static_cast<Int64>(segment.part) * kPartFloats;
        const int of_tile = row - segment.row_lo;
        store_row(part + of_tile * kPartRow + column, h, inside, [](float a, float b) { return make_float2(a, b); });
        if (writes && inside) {
          *reinterpret_cast<float4*>(part + kTileRows * kPartRow + of_tile * kRowState) =
              make_float4(state.reference, state.sum, state.top, 0.0f);
        }
      }
    }
  }
  // A thread has two neighbouring columns of each eight, which `pair` makes one value of. They are exchanged with the
  // neighbour, so that an even lane has four of one eight and an odd lane four of the next: stores of whole sectors. Many
  // are exchanged before the first is stored: in a branch around each store ptxas computed its address anew, 15 KB of code.
  template <class Stored, class Pair>
  __device__ void store_row(Stored* to, int h, bool inside, const Pair& pair) const {
    constexpr int kTogether = sizeof(Stored) == 2 ? 32 : 16;  // of floats there are no registers for more
    const bool odd = recompute(threadIdx.x) % 2 != 0;
    to += odd ? 8 - 2 : 0;
#pragma unroll
    for (int first = 0; first < kOutputs / 4; first += kTogether) {
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

  __device__ void run(const Progress* all) {
    for (u32 number = 0;; ++number) {
      const Progress& at = all[number % kMlaSegments];
      wait_barrier(shared.queries_full(), number % 2);
      attend(at.segment);
      join_rows();
      if (lane_id() == 0) arrive(shared.queries_empty());
      const bool last = uniform(at.at_last());
      if (last) release_next_launch();  // no sooner: SMs without work of this one would take all of the next
      store(at.segment);
      if (last) return;
    }
  }
};

__device__ inline void set_up(const SharedMemory& shared) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kMlaStages; ++stage) {
      for (int piece = 0; piece < kMlaPieces; ++piece) init_barrier(shared.full(stage, piece), 1);
      for (int half = 0; half < kMlaConsumers; ++half) init_barrier(shared.empty(stage, half), kMlaWarps * kCluster);
    }
    shared.copied() = 0;
    init_barrier(shared.queries_full(), 1);
    init_barrier(shared.queries_empty(), kMlaConsumers * kMlaWarps);
    publish_barriers();
  }
  __syncthreads();
  // The barriers are published: nothing else has to be seen by the other block.
  if constexpr (kCluster > 1) arrive_at_cluster(), wait_for_cluster();
}

__device__ inline void mla_forward(const KernelParams& params, const TensorMaps& maps, float* parts) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int* scratch = reinterpret_cast<int*>(memory + kPlaces.scratch_offset);
  const SharedMemory shared = {shared_address(memory), memory};
  if (threadIdx.x == 0) prefetch_map(maps.q), prefetch_map(maps.k);
  prefetch_table<kMlaThreads>(params);
  const Ranges ranges = ranges_of(params, count_steps<kMlaThreads>(params, scratch));
  const int range = blockIdx.x / kCluster;
  if (range >= ranges.count) return;  // with all of its cluster
  const int step = ranges.begin(range), end = ranges.begin(range + 1);
  if (step == end) return;  // there are no steps at all
  const Segments segments = {&params, range, step, end, place_of<kMlaThreads>(params, step, scratch)};
  Progress* progress = reinterpret_cast<Progress*>(memory + kPlaces.progress_offset);
  Progress* progress_of_rows = progress + kMlaCopies;
  if (threadIdx.x == 0) progress[0] = progress[1] = progress_of_rows[0] = {segments, segments.first(), true};
  set_up(shared);
  if (threadIdx.x < 128) {
    shrink_registers<kMlaProducerRegisters>();
    if (threadIdx.x < 32) Producer{params, maps, shared}.run(progress[0]);
    else if (threadIdx.x < 64) QueriesProducer{params, maps, shared}.run(progress_of_rows);
    else if (threadIdx.x < 96) Prefetcher{params, shared}.run(progress[1]);
  } else {
    grow_registers<kMlaConsumerRegisters>();
    if (threadIdx.x < 256) Consumer<0>{params, shared, parts}.run(progress_of_rows);
    else Consumer<1>{params, shared, parts}.run(progress_of_rows);
  }
  // No block leaves while others may still reach its memory.
  if constexpr (kCluster > 1) sync_cluster();
}

}  // namespace flashjit
