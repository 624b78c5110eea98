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
  __device__ void issue_output(u32 stage) {
    const u32 v = descriptor(recompute(shared.v(stage, half)), kPanelBytes);
    multiply_output(o, p, v, 1);
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
    if constexpr (kCluster == 1) {
      arrive(shared.empty(stage, half));
    } else {
#pragma unroll
      for (u32 block = 0; block < kCluster; ++block) arrive_in(shared.empty(stage, half), block);
    }
  }

  // P of the other's tile is there; this one's part of O follows its references.
  __device__ void follow(int tile, int end, u32 stage, u32 parity) {
    await_half(stage, parity);
    sync_named(kReadyBarrier + stage, kConsumerThreads);
    const u32 warp = recompute(threadIdx.x) % 128 / 32;
    if (__any_sync(0xffffffff, shared.rose(kOther, warp) != 0)) {
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

  __device__ void issue_tile_of_other(int tile, int end) {
    follow(tile, end, kOther, turn.parity());
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
  // other one beside its own products of the tile before.
  template <bool follows>
  __device__ void multiply(int before, int end) {
    const u32 parity = Turn{turn.count + (follows ? 1 : 0)}.parity();
    if constexpr (half == 0) {
      if constexpr (follows) issue_tile_of_other(before, end);
      issue_scores(parity, 0, 1);
      if constexpr (follows) {  // given back before the next pieces are waited for
        wait_products<1>();
        pin_registers(o);
        release(kOther);
      }
      issue_scores(parity, 1, kMlaPieces);
      wait_products<0>();
    } else {
      issue_scores(parity, 0, kMlaPieces);
      if constexpr (follows) issue_tile_of_other(before, end);
      wait_products<follows ? 1 : 0>();
    }
    pin_registers(s);
    if constexpr (follows) ++turn.count;
  }

  // From the scores on. `follows`: P V of the tile before may still be under way.
  __device__ void finish(const Segment& segment, int end, bool follows, int tile, bool mixed) {
    if (mixed || !kScaleFolded) apply_score_and_mask(s, params, segment, tile, mixed);
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
    issue_output(half);
    hand_over(rose, factor);  // beside own products: beside the other one's scores shared memory has no time for P
    complete_output(half);
    ++turn.count;
  }

  // The last tile is the other's.
  __device__ void last_step(int tile, int end) {
    issue_tile_of_other(tile, end);
    complete_output(kOther);
    ++turn.count;
  }

  // A step begins in the one before, so that only scores are there twice: what runs for the first time comes from memory.
  __device__ void attend(const Segment& segment) {
    rows.clear();
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;
    const int last = uniform(segment.last_tile), end = uniform(segment.end);
    int before = next_tile(segment, uniform(segment.first_tile)), tile = before;
    if (before > last) return;
    bool follows = turn.stage() != half;
    if (follows) tile = next_tile(segment, before + 1);
    if (tile > last) return last_step(before, end);
    bool mixed = is_mixed(segment, tile);
    if (follows) multiply<true>(before, end);
    else multiply<false>(before, end);
#pragma unroll 1
    while (true) {
      finish(segment, end, follows, tile, mixed);
      before = next_tile(segment, tile + 1);
      if (before > last) return;
      tile = next_tile(segment, before + 1);
      if (tile > last) return last_step(before, end);
      follows = true;
      mixed = is_mixed(segment, tile);
      multiply<true>(before, end);
    }
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
    const int column = static_cast<int>(half) * half_columns(config) + static_cast<int>(lane_id()) % 4 * 2;
    const bool writes = half == 0 && lane_id() % 4 == 0, whole = uniform(segment.part < 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row(segment) + row_of_thread(h);
      const bool inside = row < segment.seq.q_len * kGroup;
      const RowState state = {rows.reference[h], rows.sum[h], rows.top[h]};
      if (whole) {
        const Row at = row_at(segment.seq, inside ? row : segment.row_lo);
        store_row(finish_row(params, segment.seq, at, state, writes && inside),
                  query_row(params.o_stride, segment.seq, at.h, at.q) + column, h, inside);
      } else if (inside) {
        float* part = parts + static_cast<Int64>(segment.part) * kPartFloats;
        const int of_tile = row - segment.row_lo;
        float* to = part + of_tile * kPartRow + column;
#pragma unroll
        for (int j = 0; j < kOutputs / 4; ++j)
          *reinterpret_cast<float2*>(to + 8 * j) = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
        if (writes) {
          *reinterpret_cast<float4*>(part + kTileRows * kPartRow + of_tile * kRowState) =
              make_float4(state.reference, state.sum, state.top, 0.0f);
        }
      }
    }
  }
  // Two neighbouring columns of each eight. 16-bit ones are exchanged with the neighbour, so that an even lane has four
  // of one eight and an odd lane four of the next: stores of whole sectors. All are exchanged before the first is stored:
  // in a branch around each store ptxas computed its address anew, 15 KB of code.
  __device__ void store_row(float factor, Int64 at, int h, bool inside) const {
    if constexpr (config.output == Element::f32) {
      float* to = static_cast<float*>(params.o) + at;
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j) {
        const float2 pair = make_float2(o[4 * j + 2 * h] * factor, o[4 * j + 2 * h + 1] * factor);
        if (inside) *reinterpret_cast<float2*>(to + 8 * j) = pair;
      }
    } else {
      const bool odd = lane_id() % 2 != 0;
      u32 words[kOutputs / 4];
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j)
        words[j] = pack<config.output>(o[4 * j + 2 * h] * factor, o[4 * j + 2 * h + 1] * factor);
#pragma unroll
      for (int j = 0; j < kOutputs / 4; j += 2) {
        const u32 received = __shfl_xor_sync(0xffffffff, odd ? words[j] : words[j + 1], 1);
        words[j] = odd ? received : words[j];
        words[j + 1] = odd ? words[j + 1] : received;
      }
      u16* to = static_cast<u16*>(params.o) + at + (odd ? 8 - 2 : 0);
      if (inside) {
#pragma unroll
        for (int j = 0; j < kOutputs / 4; j += 2) store_global(to + 8 * j, make_uint2(words[j], words[j + 1]));
      }
    }
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
    init_barrier(shared.queries_full(), kQueriesWarps);
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
  prefetch_table<kMlaThreads>(params);
  const Ranges ranges = ranges_of(params, count_steps<kMlaThreads>(params, scratch));
  const int range = blockIdx.x / kCluster;
  if (range >= ranges.count) return;  // with all of its cluster
  const int step = ranges.begin(range), end = ranges.begin(range + 1);
  if (step == end) return;  // there are no steps at all
  const Segments segments = {&params, range, step, end, place_of<kMlaThreads>(params, step, scratch)};
  Progress* progress = reinterpret_cast<Progress*>(memory + kPlaces.progress_offset);
  if (threadIdx.x == 0) progress[0] = progress[1] = {segments, segments.first(), true};
  set_up(shared);
  if (threadIdx.x < 128) {
    shrink_registers<kMlaProducerRegisters>();
    if (threadIdx.x < 32) Producer{params, maps, shared}.run(progress[0]);
    else QueriesProducer{params, shared}.run(progress + 1);
  } else {
    grow_registers<kMlaConsumerRegisters>();
    if (threadIdx.x < 256) Consumer<0>{params, shared, parts}.run(progress + 1);
    else Consumer<1>{params, shared, parts}.run(progress + 1);
  }
  // No block leaves while others may still reach its memory.
  if constexpr (kCluster > 1) sync_cluster();
}

}  // namespace flashjit
