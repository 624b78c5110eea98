// Facts about the keys of a tile that scores, masks and weights take, and the query that a row of the tile belongs to.
#pragma once

#include "templates/decode/rows.cuh"
#include "templates/decode/tiles.cuh"

namespace flashjit {

constexpr int kOctets = octets(config);

// The query of a lane's row of an octet, as score and mask get it. Rows behind the last one are replaced by the last
// one.
struct Query {
  Sequence seq;
  int q;
};
__device__ inline Query query_of(const Segment& s, int octet) {
  const int row = s.row_lo + octet * kOctet + lane_id() / 4;
  const Row at = row_at(s.seq, min(row, s.seq.q_len * kGroup - 1));
  Query query = {s.seq, at.q};
  query.seq.h = at.h;
  return query;
}

// Facts about the keys that a lane has in S, which are loaded a tile ahead: their scales, where each key has its own or
// shares a block's, and, with merged lists, how many tokens each of the lane's rows sees of the page of the tile.
constexpr u32 kPageKeys = larger(config.page_size, 1);
struct KeyFacts {
  float scale_of_k[kKeyOctets][2], scale_of_v[kKeyOctets][2];
  int tokens[kOctets];
  const int* tokens_of[kOctets];  // Where a row finds how many tokens it sees of each page.

  // Begins a segment with this tile.
  __device__ void begin(const KernelParams& p, const Segment& s, int tile) {
    if constexpr (kListsAreMerged) {
#pragma unroll
      for (int r = 0; r < kOctets; ++r) tokens_of[r] = tokens_of_pages(p, s.seq, query_of(s, r).q);
    }
    load(p, s, tile);
  }
  __device__ void load(const KernelParams& p, const Segment& s, int tile) {
    if (tile > s.last_tile) return;
    if constexpr (has_key_scales(config)) load_scales(p, s, tile);
    if constexpr (kListsAreMerged) {
      const u32 entry = static_cast<u32>(tile * kTileKv) / kPageKeys;
#pragma unroll
      for (int r = 0; r < kOctets; ++r) tokens[r] = __ldg(tokens_of[r] + entry * kMergedStep);
    }
  }
  __device__ void load_scales(const KernelParams& p, const Segment& s, int tile) {
#pragma unroll
    for (int n = 0; n < kKeyOctets; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = min(tile * kTileKv + n * 8 + score_key(e), s.end - 1);
        scale_of_k[n][e] = key_scale(p, p.scale_k, p.scale_k_stride, s.seq, key);
        scale_of_v[n][e] = key_scale(p, p.scale_v, p.scale_v_stride, s.seq, key);
      }
  }
};

}  // namespace flashjit
