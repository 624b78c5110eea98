// Makes dK and dV where queries have lists of keys, in a fixed order (dq=launch). A block has a few rows of K and V,
// and searches the lists of all queries of their sequence for these rows. For each row that it finds, in the order of
// the queries and of their lists, it makes P and ds of all heads of a group again, and adds them times dO and Q to sums
// in shared memory. No matrix instructions take part: gradients.cuh is faster where no order is needed.
#pragma once

#include "templates/backward/gradients.cuh"

namespace flashjit {

// A key in a list, in a row of this block, for a head: its P and ds.
struct ListedPair {
  int row, head;
  float p, ds;
};
// With v_in_k the sums of dV are added to those of dK, so that these get their scale at once.
constexpr int kListedDims = config.head_dim_qk + (config.v_in_k ? 0 : config.head_dim_v);
constexpr int kPairsAtOnce = kListedThreads;

struct ListedState {
  float sums[kListedRows][kListedDims];
  ListedPair pairs[kPairsAtOnce];
  // Indices into the list, and the rows of the block to which they belong.
  int found[kListedThreads], rows[kListedThreads];
  int of_warp[kListedThreads / 32];  // The number that each warp has found.
};

// Returns the product to all lanes of a warp.
__device__ inline float product_of_warp(const Stored* a, const Stored* b, int columns) {
  float sum = 0;
  for (int column = threadIdx.x % 32; column < columns; column += 32) sum += number(a[column]) * number(b[column]);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  return sum;
}

// Puts what the threads have found side by side, in the order of the list. Returns its number.
__device__ inline int gather_found(ListedState& state, bool is_found, int index, int row) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 votes = __ballot_sync(0xffffffff, is_found);
  if (lane == 0) state.of_warp[warp] = __popc(votes);
  __syncthreads();
  int before = 0, all = 0;
  for (int i = 0; i < kListedThreads / 32; ++i) {
    before += i < warp ? state.of_warp[i] : 0;
    all += state.of_warp[i];
  }
  if (is_found) {
    const int at = before + __popc(votes & ((1u << lane) - 1));
    state.found[at] = index, state.rows[at] = row;
  }
  __syncthreads();
  return all;
}

// Returns P and ds of a key in the list of a query, for a head of its group. A warp runs this.
__device__ inline ListedPair listed_pair(const KernelParams& params, const RowFacts* facts, Sequence seq, int index,
                                         int row, int head) {
  seq.h += head;
  const Int64 number = chosen_list(params, seq)[index];
  const auto* q = static_cast<const Stored*>(params.q) + query_row(params.q_stride, seq, seq.h, 0);
  const auto* d_o = static_cast<const Stored*>(params.d_o) + query_row(params.d_o_stride, seq, seq.h, 0);
  const auto* k =
      static_cast<const Stored*>(params.k) + key_begin(params.k_stride, seq) + number * params.k_stride.token;
  const auto* v =
      static_cast<const Stored*>(params.v) + key_begin(params.v_stride, seq) + number * params.v_stride.token;
  const RowFacts of_query = facts[facts_row(params, seq, seq.h, 0)];
  float score = product_of_warp(q, k, config.head_dim_qk) * config.scale, slope = 1;
  if constexpr (config.has_score) {
    const auto [scored, by_s] = Variant::score_and_slope(params, seq, score, 0, index);
    score = scored, slope = by_s;
  }
  const float p = exp2_approx(score * kLog2e - of_query.lse);
  const float ds = p * (product_of_warp(d_o, v, config.head_dim_v) - of_query.delta) * slope;
  return {row, seq.h, p, p == 0 ? 0.0f : ds};
}

// Adds the products of pairs to a column of sums of dK, and of dV, which is in it.
__device__ inline void add_pairs_once(ListedState& state, const KernelParams& params, const Sequence& seq, int count,
                                      int column) {
  const auto* q = static_cast<const Stored*>(params.q) + column;
  const auto* d_o = static_cast<const Stored*>(params.d_o) + column;
  for (int i = 0; i < count; ++i) {
    const ListedPair& pair = state.pairs[i];
    float sum = pair.ds * config.scale * number(q[query_row(params.q_stride, seq, pair.head, 0)]);
    if (column < config.head_dim_v) sum += pair.p * number(d_o[query_row(params.d_o_stride, seq, pair.head, 0)]);
    state.sums[pair.row][column] += sum;
  }
}

// Adds the products of pairs to the sums. A thread has the same columns each time, so the order is that of the pairs.
__device__ inline void add_pairs(ListedState& state, const KernelParams& params, const Sequence& seq, int count) {
  for (int column = threadIdx.x; column < kListedDims; column += kListedThreads) {
    if constexpr (config.v_in_k) {
      add_pairs_once(state, params, seq, count, column);
      continue;
    }
    const bool of_keys = column < config.head_dim_qk;
    const auto* rows =
        static_cast<const Stored*>(of_keys ? params.q : params.d_o) + (of_keys ? column : column - config.head_dim_qk);
    const Strides& s = of_keys ? params.q_stride : params.d_o_stride;
    for (int i = 0; i < count; ++i) {
      const ListedPair& pair = state.pairs[i];
      state.sums[pair.row][column] += (of_keys ? pair.ds : pair.p) * number(rows[query_row(s, seq, pair.head, 0)]);
    }
  }
}

// Adds the gradients from the list of one query to the rows of the block.
__device__ inline void add_query(ListedState& state, const KernelParams& params, const RowFacts* facts,
                                 const Sequence& seq, u32 first, int rows) {
  constexpr int kWarps = kListedThreads / 32;
  const u32 of_sequence = static_cast<u32>(seq.b) * params.key_rows;
  for (int begin = 0; begin < seq.k_len; begin += kListedThreads) {
    const int index = begin + static_cast<int>(threadIdx.x);
    const bool is_there = index < seq.k_len && is_chosen(params, seq, index);
    // Rows before the first get large numbers in this way.
    const u32 row = is_there ? of_sequence + chosen_list(params, seq)[index] - first : ~0u;
    const bool is_found = row < static_cast<u32>(rows);
    if (!__syncthreads_or(is_found)) continue;
    const int pairs = gather_found(state, is_found, index, static_cast<int>(row)) * group_size(config);
    for (int done = 0; done < pairs; done += kPairsAtOnce) {
      const int count = min(pairs - done, kPairsAtOnce);
      for (int i = threadIdx.x / 32; i < count; i += kWarps) {
        const int found = (done + i) / group_size(config), head = (done + i) % group_size(config);
        const ListedPair pair = listed_pair(params, facts, seq, state.found[found], state.rows[found], head);
        if (threadIdx.x % 32 == 0) state.pairs[i] = pair;
      }
      __syncthreads();
      add_pairs(state, params, seq, count);
      __syncthreads();
    }
  }
}

template <Element output>
__device__ inline void store_listed(void* gradient, Int64 at, float sum) {
  if constexpr (output == Element::f32) add_or_store(static_cast<float*>(gradient) + at, sum);
  else static_cast<u16*>(gradient)[at] = static_cast<u16>(pack<output>(sum, 0.0f));
}

__device__ inline void backward_listed_keys(const KernelParams& params, const RowFacts* facts) {
  __shared__ ListedState state;
  const auto [first, rows, hk] = key_rows_of_block<kListedRows>(params);
  for (int i = threadIdx.x; i < kListedRows * kListedDims; i += kListedThreads) state.sums[0][i] = 0;
  __syncthreads();
  const u32 of_sequence = params.key_rows, queries = params.queries_of_sequence;
  const u32 begin = first / of_sequence * queries, end = ((first + rows - 1) / of_sequence + 1) * queries;
#pragma unroll 1
  for (u32 query = begin; query < end; ++query)
    add_query(state, params, facts, sequence_of(params, static_cast<int>(query), hk * group_size(config)), first, rows);
  for (int i = threadIdx.x; i < rows * kListedDims; i += kListedThreads) {
    const u32 row = first + i / kListedDims;
    const int column = i % kListedDims;
    const float sum = state.sums[i / kListedDims][column];
    if (column < config.head_dim_qk)
      store_listed<config.output_dk>(params.dk, key_row(params.dk_stride, params, row, hk) + column,
                                     config.v_in_k ? sum : sum * config.scale);
    else
      store_listed<config.output_dv>(params.dv,
                                     key_row(params.dv_stride, params, row, hk) + column - config.head_dim_qk, sum);
  }
}

}  // namespace flashjit
