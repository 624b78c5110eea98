// The queries and keys that a block of an index has, and where their scores go.
#pragma once

#include "templates/index/layout.h"
#include "templates/kv_rows.cuh"
#include "templates/score_and_mask.cuh"

namespace flashjit {

constexpr bool kPackedQueries = kRows == Rows::packed, kLists = config.listed > 0;

// A tile of queries, and what a block has of the keys: of the tiles that some query may see, and of all others.
struct IndexWork {
  Sequence seq;
  int q_lo;
  int first_seen, end_seen;  // of the tiles in which there is a key that some query may see
  int first, end;            // those of them that the block has
};

// Finds the tiles of keys that queries from q_lo on see, as many queries as a tile has.
__device__ inline void find_seen(const KernelParams& p, IndexWork& w) {
  const int q_hi = min(w.q_lo + config.tile_q, w.seq.q_len) - 1;
  const int begin = static_cast<int>(Variant::kv_begin(p, w.seq, w.q_lo, q_hi)),
            end = static_cast<int>(Variant::kv_end(p, w.seq, w.q_lo, q_hi));
  w.end_seen = (max(min(end, w.seq.k_len), 0) + config.tile_kv - 1) / config.tile_kv;
  w.first_seen = min(max(begin, 0) / config.tile_kv, w.end_seen);
}

// Where part `part` of `parts` begins, of so many.
__device__ inline int share_of(int count, int part, int parts) {
  return static_cast<int>(static_cast<Int64>(max(count, 0)) * part / parts);
}

// Tiles with the last queries of a sequence begin first: with a causal mask they see the most keys.
__device__ inline IndexWork index_work(const KernelParams& p) {
  const int item = blockIdx.x % p.key_items, part = blockIdx.x / p.key_items;
  const int number = item / config.heads_kv, hk = item % config.heads_kv;
  NumberedTile at = {number / p.tiles_q, p.tiles_q - 1 - number % p.tiles_q};
  if constexpr (kPackedQueries) at = numbered_tile(p.offsets_q, p.batch, config.tile_q, p.tiles_q - 1 - number);
  IndexWork w;
  w.seq = sequence_of(p, at.b, hk * group_size(config));
  w.q_lo = at.tile * config.tile_q;
  w.first_seen = w.end_seen = 0;
  if (w.q_lo < w.seq.q_len) find_seen(p, w);
  w.first = w.first_seen + share_of(w.end_seen - w.first_seen, part, p.parts);
  w.end = w.first_seen + share_of(w.end_seen - w.first_seen, part + 1, p.parts);
  return w;
}

// The scores of a query. In the workspace rows follow each other, and are read by list_largest().
__device__ inline float* scores_of(const KernelParams& p, float* scores, const Sequence& seq, int q) {
  if constexpr (!kLists) return scores + query_row(p.scores_stride, seq, seq.hk, q);
  const Int64 row = (kPackedQueries ? seq.q_token : static_cast<Int64>(seq.b) * p.q_len) + q;
  return scores + (row * config.heads_kv + seq.hk) * scored_row(p.k_len);
}

// Without lists, keys that no query sees have scores as well, which blocks share as they share the others: visit(scores of a
// query, first key, end) for those of this block.
template <class Visit>
__device__ inline void visit_unseen(const KernelParams& p, float* scores, const IndexWork& w, const Visit& visit) {
  if constexpr (kLists) return;
  const int part = blockIdx.x / p.key_items, seen = min(w.first_seen * config.tile_kv, p.k_len),
            behind = min(w.end_seen * config.tile_kv, p.k_len);
  const int queries = min(config.tile_q, w.seq.q_len - w.q_lo);
  for (int i = 0; i < queries; ++i) {
    float* const row = scores_of(p, scores, w.seq, w.q_lo + i);
    visit(row, share_of(seen, part, p.parts), share_of(seen, part + 1, p.parts));
    visit(row, behind + share_of(p.k_len - behind, part, p.parts),
          behind + share_of(p.k_len - behind, part + 1, p.parts));
  }
}

__device__ inline const float* weights_of(const KernelParams& p, const Sequence& seq, int q) {
  return p.weights + query_row(p.weights_stride, seq, seq.h, q);
}

}  // namespace flashjit
