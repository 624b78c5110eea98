// The vocabulary of blocks whose warpgroups have roles, because dK and dV do not fit into the registers of one. A block
// has 64 keys. The first warpgroup computes scores and dV, the second dP and dK. The first sends P to the second in
// fp32, because a key may have no P that fp16 can hold. dQ is made by another launch, or by a third warpgroup
// (cluster.cuh). loop.gen.cuh determines what the warpgroups do, and in which order.
#pragma once

#include "templates/hopper_backward/order.cuh"
#include "templates/hopper_backward/output.cuh"
#include "templates/hopper_backward/scores.cuh"

namespace flashjit {

// 64 rows of dK or dV. Two products may share their columns (columns_at_once()).
template <int dims>
struct RoleSums {
  static constexpr int kFirst = columns_at_once(config, dims), kRest = dims - kFirst;
  float first[kFirst / 2], rest[kRest > 0 ? kRest / 2 : 1];

  // Adds the rows to those of other items with queries of the same keys. Returns false unless this warp is the last one
  // and has to store the sums.
  __device__ bool add_up(const PartSums& all, int number, int parts) {
    wait_for_launch_before();  // That launch has set the sums to zero.
    const int warp = number * cut_warps(config) + static_cast<int>(cluster_rank() * 8 + threadIdx.x / 32);
    float *of_first = all.of_warp(warp, cut_floats(config)), *of_rest = of_first + 16 * kFirst;
    PartSums::add(of_first, first);
    if constexpr (kRest > 0) PartSums::add(of_rest, rest);
    if (!all.is_last(warp, parts)) return false;
    PartSums::read(first, of_first);
    if constexpr (kRest > 0) PartSums::read(rest, of_rest);
    return true;
  }
  // The item is found again here, because keeping it through the loop would cost registers.
  template <Element output>
  __device__ void store(const KernelParams& params, const SharedMemory& shared, void* tensor, const Strides& strides,
                        float scale, const PartSums& all) {
    const BackwardItem item = item_of_block(params, shared);
    if (kCutsItems && params.parts > 1 && !add_up(all, item.number, params.parts)) return;
    const Int64 begin = key_begin(strides, item.seq);
    const int row = item.k_lo + static_cast<int>(first_key_of_block());
    store_rows<output, kFirst>(tensor, begin, strides.token, row, item.seq.k_len, scale, first);
    if constexpr (kRest > 0)
      store_rows<output, kRest>(tensor, begin + kFirst, strides.token, row, item.seq.k_len, scale, rest);
  }
};
template <int dims>
__device__ inline void clear(RoleSums<dims>& sums) {
#pragma unroll
  for (float& x : sums.first) x = 0;
#pragma unroll
  for (float& x : sums.rest) x = 0;
}
template <int dims>
__device__ inline void pin_registers(RoleSums<dims>& sums) {
  pin_registers(sums.first);
  if constexpr (RoleSums<dims>::kRest > 0) pin_registers(sums.rest);
}

template <u32 warpgroup>
struct RoleState {
  const KernelParams& params;
  const SharedMemory& shared;
  BackwardItem& item;
  Ones ones;
  Kept kept;

  __device__ void begin_turn() const { Turns{warpgroup}.begin(); }
  __device__ void end_turn() const { Turns{warpgroup}.end(); }

  // Operands of products, by the stage or step that holds them.
  __device__ u32 own_keys() const { return descriptor(shared.k()); }
  __device__ u32 own_values() const { return descriptor(shared.v()); }
  __device__ u32 queries(u32 stage) const { return descriptor(shared.q(stage)); }
  __device__ u32 query_rows(u32 stage) const { return descriptor(shared.q(stage), kLayout.q.panel_bytes()); }
  __device__ u32 query_rows_of_rest(u32 stage) const {
    constexpr int kFirst = RoleSums<config.head_dim_qk>::kFirst;
    return descriptor(shared.q(stage) + kFirst / kLayout.q.panel_columns() * kLayout.q.panel_bytes(),
                      kLayout.q.panel_bytes());
  }
  __device__ u32 d_o(int number) const { return descriptor(shared.d_o(number)); }
  __device__ u32 d_o_rows(int number) const { return descriptor(shared.d_o(number), kLayout.d_o.panel_bytes()); }
  __device__ u32 d_o_rows_of_rest(int number) const {
    constexpr int kFirst = RoleSums<config.head_dim_v>::kFirst;
    return descriptor(shared.d_o(number) + kFirst / kLayout.d_o.panel_columns() * kLayout.d_o.panel_bytes(),
                      kLayout.d_o.panel_bytes());
  }
  __device__ u32 lse_terms(u32 stage) const { return rows_descriptor(shared.terms(stage)); }
  __device__ u32 d_terms(u32 stage) const {
    return rows_descriptor(shared.terms(stage) + (kInClusters ? 0 : kTileQ * kTermBytes));
  }

  // Returns where this thread's P lies, 16 bytes for every eight queries.
  __device__ u32 exchange(int i) const {
    return shared.exchange(0) + (i * kThreadsPerWarpgroup + threadIdx.x % kThreadsPerWarpgroup) * 16;
  }
};

struct ScoreRoleState : RoleState<0> {
  Scores s;
  Fragments p;
  RoleSums<config.head_dim_v> dv;

  // Stores P for the other warpgroup.
  __device__ void store_weights() const {
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i)
      store_shared(exchange(i), make_uint4(__float_as_uint(s[4 * i]), __float_as_uint(s[4 * i + 1]),
                                           __float_as_uint(s[4 * i + 2]), __float_as_uint(s[4 * i + 3])));
  }
  __device__ void store_dv(const PartSums& all) {
    dv.store<config.output_dv>(params, shared, params.dv, params.dv_stride, kDropoutFactor, all);
  }
};

struct GradientRoleState : RoleState<1> {
  u32 first_tile;  // In clusters: the first head's first query tile, numbered as in the workspace.
  Scores dp;
  Fragments ds;
  RoleSums<config.head_dim_qk> dk;

  // Turns dP into dS.
  __device__ void multiply_by_weights(u32 stage) {
    const ByWeight by_weight = {dp, kept, shared.terms(stage)};
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const ByWeight::Four four = by_weight.four(i);
      const uint4 words = load_shared(exchange(i / 4));
      float p[4] = {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                    __uint_as_float(words.w)};
      four.multiply(0, p[0], p[1]);
      four.multiply(2, p[2], p[3]);
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[i + e] = p[e];
    }
  }
  // In a cluster: makes NaN of the sums of queries whose D is marked as not finite.
  __device__ void spoil_marked(u32 terms) {
    if (load_shared_word(terms + 4) >> 16 == 0) return;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const u32 query = i / 4 * 8 + i % 2 + recompute(threadIdx.x) % 4 * 2;
      if (load_shared_word(terms + query * kTermBytes + 12) >> 16 != 0) dp[i] = kInfinity - kInfinity;
    }
    pin_registers(dp);
  }
  // In a cluster: waits until dS of all `steps` steps has been read.
  __device__ void await_all_ds(int steps) const {
    for (int i = 0; i < kDsStages; ++i)
      wait_barrier(shared.ds_empty((steps + i) % kDsStages), (steps + i) / kDsStages % 2 ^ 1);
  }
  __device__ void store_dk(const PartSums& all) {
    dk.store<config.output_dk>(params, shared, params.dk, params.dk_stride, config.scale * kDropoutFactor, all);
  }
};

}  // namespace flashjit
