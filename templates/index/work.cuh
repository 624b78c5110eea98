// The queries and keys that a block of an index has, and the place of their scores.
#pragma once

#include "templates/index/layout.h"
#include "templates/kv_rows.cuh"
#include "templates/score_and_mask.cuh"

namespace flashjit {

constexpr bool kPackedQueries = kRows == Rows::packed, kLists = config.listed > 0;

// A tile of queries, and a block's share of the keys: of the tiles that some query may see, and of all others.
struct IndexWork {
  Sequence seq;
  int q_lo;
  int first_seen, end_seen;  // The tiles with a key that some query may see.
  int first, end;            // The block's share of these tiles.
};

// Finds the tiles of keys that a tile of queries from q_lo on sees.
__device__ inline void find_seen(const KernelParams& p, IndexWork& w) {
  const int q_hi = min(w.q_lo + config.tile_q, w.seq.q_len) - 1;
  const int begin = static_cast<int>(Variant::kv_begin(p, w.seq, w.q_lo, q_hi)),
            end = static_cast<int>(Variant::kv_end(p, w.seq, w.q_lo, q_hi));
  w.end_seen = (max(min(end, w.seq.k_len), 0) + config.tile_kv - 1) / config.tile_kv;
  w.first_seen = min(max(begin, 0) / config.tile_kv, w.end_seen);
}

// Returns where part `part` of `parts` begins, among `count` things.
__device__ inline int share_of(int count, int part, int parts) {
  return static_cast<int>(static_cast<Int64>(max(count, 0)) * part / parts);
}

// Tiles with the last queries of a sequence begin first, because with a causal mask they see the most keys.
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

// Returns where the scores of a query lie. In the workspace rows follow each other, and list_largest() reads them.
__device__ inline float* scores_of(const KernelParams& p, float* scores, const Sequence& seq, int q) {
  if constexpr (!kLists) return scores + query_row(p.scores_stride, seq, seq.hk, q);
  const Int64 row = (kPackedQueries ? seq.q_token : static_cast<Int64>(seq.b) * p.q_len) + q;
  return scores + (row * config.heads_kv + seq.hk) * scored_row(p.k_len);
}

// Visits keys that no query sees. Without lists they have scores as well, and blocks share them as they share the
// others: visit(scores of a query, first key, end) is called for those of this block.
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
