// Backward attention for every GPU from sm_80 on: cp.async copies, ldmatrix, mma.sync. With dq=launch there are two
// launches of one loop, which see the scores from their two sides (layout.h): dK and dV of a block of keys, dQ of a block
// of queries. Each makes the scores anew, so gradients are sums in a fixed order, of which nothing goes through memory.
// With dq=atomics the first of them adds its share of dQ to sums in memory, with five products instead of seven.
// Where queries have lists of keys the launch of queries comes first, and adds its shares of dK and dV; with dq=launch
// another one makes these (listed_keys.cuh).
//
// With s the logits of a warp's rows and columns of a tile, in registers:
//   P = exp(s - lse), dP = dO V^T, ds = P (dP - delta) ds/d(scale q.k)
// and with dropout what is left of dP, and of P where it multiplies dO
//   of keys:    dV += P dO, dK += ds Q        of queries: dQ += ds K
#pragma once

#include "templates/backward/products.cuh"

namespace flashjit {

__device__ inline HeadSums head_sums_of(const KernelParams& params, float* data) {
  return {data, (params.k_len + kBlockRows - 1) / kBlockRows, config.sync_backward.warps};
}
// This comes before backward_prepare() ...
__device__ inline void begin_parameters(const KernelParams& params, float* head_sums = nullptr) {
  zero_gradients<kPrepareThreads, false>(params);
  if constexpr (Variant::kHeadReads > 0) zero_head_sums<kPrepareThreads>(params, head_sums_of(params, head_sums));
}
// ... and this is a launch after all others.
__device__ inline void end_parameters(const KernelParams& params, const float* sink_rows, float* head_sums = nullptr) {
  sum_gradients(params, sink_rows, head_sums_of(params, head_sums));
}

// Addresses in shared memory of the tiles that a block multiplies in a step.
struct Operands {
  u32 rows_qk, rows_v, columns_qk, columns_v;
};

// Makes P of a tile and the gradients of its scores. Where columns belong to several groups, P is in shared memory
// before anything waits for dP. `counts` is true if this block adds to the gradients of parameters.
template <Side side>
__device__ inline void make_weights(Scores& p, Scores& ds, OfParameters& of_parameters, const KernelParams& params,
                                    const BlockState& block, int tile, const Facts<side>& of_queries,
                                    const Operands& in, u32 memory, bool counts) {
  constexpr int kDimQk = padded_dim_qk(config), kDimV = padded_dim_v(config);
  constexpr bool kShares = (kColumnGroups > 1 && side == Side::keys) || adds_keys(config);
  const int column_lo = tile * kBlockColumns;
  const u32 shared_p = memory + kLayout<side>.p_offset;
  DrawnWeights drawn;
  const DrawnWeights* dropped = kDrops ? &drawn : nullptr;
  multiply_rows<kDimQk>(p, in.rows_qk, kLayout<side>.rows_qk, in.columns_qk, kLayout<side>.columns_qk);
  const bool mixed = is_mixed(block, tile);
  if constexpr (config.gradients > 0 && side == Side::keys) {
    multiply_rows<kDimV>(ds, in.rows_v, kLayout<side>.rows_v, in.columns_v, kLayout<side>.columns_v);
    if constexpr (kDrops) {
      drawn.draw<side>(memory + kLayout<side>.dropout_offset, block.seq, block.row_lo, column_lo);
      drawn.drop<side>(ds);
    }
    make_all_gradients(p, ds, of_parameters, params, block, column_lo, mixed, of_queries, counts);
    if constexpr (kShares) share(p, shared_p, dropped);
  } else {
    Scores slope;
    if constexpr (config.has_score) make_logits<side>(p, slope, params, block.seq, block.row_lo, column_lo);
    if (mixed) hide<side>(p, params, block.seq, block.row_lo, column_lo);
    if constexpr (kDrops) drawn.draw<side>(memory + kLayout<side>.dropout_offset, block.seq, block.row_lo, column_lo);
    make_probabilities<side>(p, of_queries);
    if constexpr (kShares) share(p, shared_p, dropped);
    multiply_rows<kDimV>(ds, in.rows_v, kLayout<side>.rows_v, in.columns_v, kLayout<side>.columns_v);
    if constexpr (kDrops) drawn.drop<side>(ds);
    make_score_gradients<side>(ds, p, slope, mixed, of_queries);
  }
  if constexpr (kDrops && side == Side::keys && !kShares) drawn.drop<side>(p);
}

template <Side side>
__device__ inline void backward_gradients(const KernelParams& params, const RowFacts* facts, float* sums = nullptr,
                                          float* head_sums = nullptr, float* kv_sums = nullptr,
                                          int* parts_done = nullptr) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kDimQk = padded_dim_qk(config), kDimV = padded_dim_v(config), kSlices = gradient_slices(config, side);
  constexpr int kTilesQk = share_of(kDimQk, kSlices * kColumnGroups) / 8,
                kTilesV = share_of(value_columns(config), kSlices * kColumnGroups) / 8;
  constexpr bool kShared = kColumnGroups > 1 || config.sync_backward.dq == DqSums::atomics;
  const u32 memory = shared_address(shared), rows_qk = memory, rows_v = memory + kLayout<side>.rows_v_offset;
  const u32 shared_p = memory + kLayout<side>.p_offset, shared_ds = memory + kLayout<side>.ds_offset;
  BlockState& block = *reinterpret_cast<BlockState*>(shared + kLayout<side>.state_offset);
  if (!begin_rows<side>(params, block, memory)) return;
  const int slice = kSlices == 1 ? 0 : block.number % kSlices;
  const Share share_qk = share_of_warp<kDimQk, kTilesQk>(slice),
              share_v = share_of_warp<value_columns(config), kTilesV>(slice);

  Sums<kTilesQk> d_qk = {};
  Sums<kTilesV> d_v = {};
  constexpr int kHeads = side == Side::keys ? group_size(config) : 1;
  constexpr bool kOfParameters = config.gradients > 0 && side == Side::keys;
  OfParameters of_parameters;
#pragma unroll 1
  for (int head = 0; head < kHeads; ++head) {
    begin_head<side>(params, block, facts, head);
    Facts<side> of_queries;
    if constexpr (side == Side::queries) read_facts(of_queries.of_rows, params, block);
    ColumnCopies<side> copies{params, block, memory};
    copies.begin();
#pragma unroll 1
    for (int tile = block.first_tile; tile <= block.last_tile; tile = visible_tile<side>(params, block, tile + 1)) {
      const u32 columns_qk = copies.await(), columns_v = columns_qk + kLayout<side>.columns_v_offset;
      of_queries.of_columns = copies.facts_address();
      Scores p, ds;
      make_weights<side>(p, ds, of_parameters, params, block, tile, of_queries,
                         {rows_qk, rows_v, columns_qk, columns_v}, memory, slice == 0);
      if constexpr (kShared) {
        share(ds, shared_ds);
        __syncthreads();
      }
      if constexpr (side == Side::keys) add_products<kDimV>(d_v, p, shared_p, columns_v, share_v.first);
      add_products<kDimQk>(d_qk, ds, shared_ds, columns_qk, share_qk.first);
      if constexpr (config.sync_backward.dq == DqSums::atomics)
        add_to_columns(params, block.seq, tile * kBlockColumns, slice, {shared_p, shared_ds, rows_qk, rows_v}, sums);
      copies.release();
    }
    if constexpr (kOfParameters) {
      if (slice == 0)
        of_parameters.end_head(params, block.seq, first_coords<side>(block.row_lo, 0).k,
                               head_sums_of(params, head_sums), block.row_lo / kBlockRows, static_cast<int>(warp_id()));
    }
    copies.end();
  }

  if constexpr (side == Side::keys && shares_keys(config)) {
    if (params.parts > 1 && !add_up_parts({kv_sums, parts_done}, params, block, d_qk, d_v)) return;
  }
  store_gradients<side>(params, block, d_qk, d_v, share_qk, share_v, rows_qk, rows_v);
}

}  // namespace flashjit
