// The consumer's vocabulary: the registers of a thread that computes, and the functions that lines of loop.gen.cuh
// call. loop.gen.cuh determines what the consumer does, and in which order.
//
// A block takes one tile of keys after the other, 64 keys for each of its warpgroups, and goes over the query tiles
// that see them. Scores are kept transposed, keys down and queries across, because P^T and dS^T in the registers of a
// thread are then the operands of the products for dV and dK. dS goes through shared memory to all warpgroups. Each
// makes a share of dQ, and adds it to sums in memory.
#pragma once

#include "templates/hopper_backward/dealer.cuh"
#include "templates/hopper_backward/kept.cuh"
#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

constexpr int kDqColumns = dq_columns(config);

struct ConsumerState {
  const KernelParams& params;
  const TensorMaps& maps;
  const SharedMemory& shared;
  float* dq_sums;
  u32 warpgroup;
  u32 keys;  // This warpgroup's first key, counted from the item's first.
  BackwardItem item;
  u32 k, v;      // The addresses of the tiles of K and V.
  u32 key_slot;  // The slot of K.
  u32 item_slot;
  Ones ones;

  float dk[config.head_dim_qk / 2], dv[config.head_dim_v / 2];
  Scores s, dp;
  float dq[kDqColumns / 2];
  Fragments p, ds;
  Kept kept;
  float* head_sums;
  PartSums part_sums;
  bool keeps;  // True if dS is kept: its gradients are made by a later launch.
  OfParameters of_parameters;

  __device__ u32 warpgroup_id() const { return warpgroup; }
  // Warpgroups take turns at issuing products, so that one exponentiates beside the products of the other.
  __device__ void begin_turn() const { Turns{warpgroup}.begin(); }
  __device__ void end_turn() const { Turns{warpgroup}.end(); }

  // Operands of products, by the stage that holds them.
  __device__ u32 own_keys() const { return descriptor(k + keys * kPanelWidth); }
  __device__ u32 own_values() const { return descriptor(v + keys * kPanelWidth); }
  __device__ u32 queries(u32 stage) const { return descriptor(shared.q(stage)); }
  __device__ u32 query_rows(u32 stage) const { return descriptor(shared.q(stage), kLayout.q.panel_bytes()); }
  __device__ u32 d_o(u32 stage) const { return descriptor(shared.d_o(stage)); }
  __device__ u32 d_o_rows(u32 stage) const { return descriptor(shared.d_o(stage), kLayout.d_o.panel_bytes()); }
  __device__ u32 lse_terms(u32 stage) const { return rows_descriptor(shared.terms(stage)); }
  __device__ u32 d_terms(u32 stage) const { return rows_descriptor(shared.terms(stage) + kTileQ * kTermBytes); }
  // A warpgroup makes dQ of all queries in its share of the columns, or of its share of the queries. (This is a
  // template because kernels without this product must not instantiate it.)
  template <int registers>
  __device__ void multiply_dq_share(float (&sums)[registers], u32 exchange) const {
    constexpr bool kColumns = splits_dq_columns(config);
    const u32 rows = kColumns ? 0 : keys * kPanelWidth;
    const u32 columns = kColumns ? warpgroup * kDqColumns / kLayout.k.panel_columns() * kLayout.k.panel_bytes() : 0;
    multiply_dq(sums, descriptor(shared.exchange(exchange) + rows), descriptor(k + columns, kLayout.k.panel_bytes()));
  }

  __device__ ScoreCoords coords_of_scores(const Steps& at) const { return ScoreCoords(item, keys, at); }
  __device__ ByWeight by_weight(u32 stage) const { return {dp, kept, shared.terms(stage)}; }

  __device__ void store_own_ds(u32 exchange) const {
    store_ds(shared.exchange(exchange) + warpgroup * kLayout.ds.panel_bytes(), ds);
  }
  // Adds this warpgroup's share of dQ to memory. Columns behind the head dim are left out.
  __device__ void add_dq(const float (&sums)[kDqColumns / 2], const Steps& at) const {
    const u32 thread = recompute(threadIdx.x) % kThreadsPerWarpgroup;
    float* to = dq_sums + workspace_tile(params, item.seq, at.head, at.tile) * dq_sum_floats(config) +
                warpgroup * (kRowsPerWarpgroup * kDqColumns) + thread * 4;
    constexpr bool kAll = !splits_dq_columns(config) || kDqColumns * kWarpgroups == config.head_dim_qk;
#pragma unroll
    for (int j = 0; j < kDqColumns / 8; ++j) {
      if (kAll || warpgroup * kDqColumns + j * 8 < config.head_dim_qk)
        add_to_global(to + j * 4 * kThreadsPerWarpgroup, sums[4 * j], sums[4 * j + 1], sums[4 * j + 2],
                      sums[4 * j + 3]);
    }
  }

  __device__ void copy_own_inputs(const Steps& at) {
    const ScoreCoords coords = coords_of_scores(at);
    flashjit::copy_own_inputs(shared, warpgroup, params, coords.seq, at.tile * kTileQ,
                              coords.key - static_cast<int>(lane_id() / 4));
  }

  // Prefetches what scores load: the keys of a warp, query by query.
  __device__ void prefetch(const Steps& at) {
    ScoreCoords coords = coords_of_scores(at);
    const int lane = static_cast<int>(lane_id()), key = coords.key - lane / 4;
#pragma unroll
    for (int row = 0; row < kTileQ; row += 32) {
      const int q = min(at.tile * kTileQ + row + lane, coords.seq.q_len - 1);
      Variant::prefetch(params, coords.seq, q, min(key, coords.seq.k_len - 1));
      Variant::prefetch(params, coords.seq, q, min(key + 15, coords.seq.k_len - 1));
    }
  }

  // Goes to the next step and returns true, or returns false after the last one. Gradients of parameters are complete
  // behind the steps of a head.
  __device__ bool advance_and_sum(Steps& at, const Steps& before) {
    const bool more = at.advance(params, item);
    if (!more || at.head != before.head) {
      const ScoreCoords coords = coords_of_scores(before);
      of_parameters.end_head(params, coords.seq, coords.key, head_sums_of(params, head_sums), item.k_lo / kTileKv,
                             static_cast<int>(warpgroup * 4 + threadIdx.x / 32 % 4));
    }
    return more;
  }

  // Adds dK and dV to those of other items with queries of the same keys. Returns false unless this warp is the last
  // one and has to store the sums.
  __device__ bool add_up(int number, bool any) {
    wait_for_launch_before();  // That launch has set the sums to zero.
    const int warp = number * cut_warps(config) + static_cast<int>(warpgroup * 4 + recompute(threadIdx.x) / 32 % 4);
    float *of_dk = part_sums.of_warp(warp, cut_floats(config)), *of_dv = of_dk + 16 * config.head_dim_qk;
    if (any) {
      PartSums::add(of_dk, dk);
      PartSums::add(of_dv, dv);
    }
    if (!part_sums.is_last(warp, params.parts)) return false;
    PartSums::read(dk, of_dk);
    PartSums::read(dv, of_dv);
    return true;
  }
  __device__ void store_dk(const BackwardItem& its, int key) const {
    store_rows<config.output_dk, config.head_dim_qk>(params.dk, key_begin(params.dk_stride, its.seq),
                                                     params.dk_stride.token, key, its.seq.k_len,
                                                     config.scale * kDropoutFactor, dk);
  }
  __device__ void store_dv(const BackwardItem& its, int key) const {
    store_rows<config.output_dv, config.head_dim_v>(params.dv, key_begin(params.dv_stride, its.seq),
                                                    params.dv_stride.token, key, its.seq.k_len, kDropoutFactor, dv);
  }

  // Finds where the tiles of a round lie.
  __device__ void find_slots(int round) {
    key_slot = uniform(round % kKeySlots), item_slot = uniform(round % kItemSlots);
    k = uniform(shared.k(key_slot)), v = uniform(shared.v(key_slot));
  }
};

}  // namespace flashjit
