// Keeps dS of every visited tile for a last launch, which sums up the gradients of tensors that the score reads in
// tiles. Where many batch indices or heads share an element, that launch reads each term of the sum once, in 16 bits,
// instead of adding each to memory. A warp that computes nothing stores what the others have written for dQ.
//
// Each tile of keys of each query tile of each head has first the keys of one warpgroup, then those of the other, as
// shared memory holds them: a row of 128 bytes for each query, in chunks of eight keys. In row r chunk c lies at
// c ^ r % 8.
#pragma once

#include "templates/hopper_backward/prepare.cuh"
#include "templates/hopper_backward/work.cuh"

namespace flashjit {

__device__ inline char* kept_tile(const KernelParams& params, char* kept, const Sequence& seq, int head, int tile,
                                  int k_lo) {
  const Int64 number = workspace_tile(params, seq, head, tile) * key_tiles(params) + k_lo / kTileKv;
  return kept + number * kLayout.exchange_bytes;
}

// dS is read from shared memory twice, for dQ and here.
__device__ inline void keep_items(const KernelParams& params, const SharedMemory& shared, char* kept) {
  u32 step = 0;  // Counts the steps of all items.
  each_item(params, shared, [&](BackwardItem& item, u32 done, u32) {
    Steps at;
    if (at.begin(params, item)) {
      do {
        const u32 i = step % kExchanges;
        wait_barrier(shared.exchange_full(i), step / kExchanges % 2);
        if (lane_id() == 0) {
          store_bytes(kept_tile(params, kept, item.seq, at.head, at.tile, item.k_lo), shared.exchange(i),
                      kLayout.exchange_bytes, kEvictFirst);
          commit_stores();
          wait_stores_read();
          arrive(shared.exchange_empty(i));
        }
        __syncwarp();
        ++step;
      } while (at.advance(params, item));
    }
    release(done);
  });
}

// ---- the last launch ----

__device__ inline bool is_visited(const KernelParams& params, const Sequence& seq, int tile, int k_lo) {
  BackwardItem item = {};
  item.seq = seq;
  item.k_lo = k_lo;
  find_queries(params, item);
  return tile >= item.first && tile <= item.last && Steps::sees(params, item, tile);
}

// A thread sums eight keys of each warpgroup for two queries that are 32 rows apart. Its keys form chunk
// thread % 8.
template <int read>
struct KeptSums {
  static constexpr int kRows = 2, kPanels = kTileKv / kRowsPerWarpgroup, kKeys = 8;
  const KernelParams& params;
  int query, k_lo;  // The block's first query and key.
  float sums[kPanels][kRows][kKeys] = {};

  __device__ int q(int row) const { return query + row * 32 + static_cast<int>(threadIdx.x) / 8; }
  __device__ int k(int panel) const {
    return k_lo + panel * kRowsPerWarpgroup + static_cast<int>(threadIdx.x) % 8 * kKeys;
  }

  __device__ void add(const Sequence& seq, const char* tile) {
    const int first = query % kTileQ + static_cast<int>(threadIdx.x) / 8, chunk = threadIdx.x % 8 ^ first % 8;
    uint4 words[kPanels][kRows];
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        words[panel][row] =
            *reinterpret_cast<const uint4*>(tile + ((panel * kTileQ + first + row * 32) * kPanelWidth + chunk * 16));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint4& four = words[panel][row];
        const u32 pairs[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
          const float ds = element_of<config.element>(pairs[i / 2], i % 2) * kDropoutFactor;
          const float derivative =
              Variant::score_and_derivatives(params, seq, 0.0f, q(row), k(panel) + i).by_read[read];
          // A dS of 0 counts for nothing, even if the derivative is infinite.
          sums[panel][row][i] += ds == 0.0f ? ds : ds * derivative;
        }
      }
  }

  __device__ void store(const Sequence& seq) {
    const Int64 right = element_of_gradient<read>(params, seq, 0, 1) - element_of_gradient<read>(params, seq, 0, 0);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        float(&values)[kKeys] = sums[panel][row];
        float* to = element_of_gradient<read>(params, seq, q(row), k(panel));
        const int keys = q(row) < params.q_len ? params.k_len - k(panel) : 0;
        if (keys >= kKeys && right == 1 && reinterpret_cast<Int64>(to) % 16 == 0) {
#pragma unroll
          for (int i = 0; i < kKeys; i += 4)
            *reinterpret_cast<float4*>(to + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
        } else {
#pragma unroll
          for (int i = 0; i < kKeys; ++i)
            if (i < keys) to[i * right] = values[i];
        }
#pragma unroll
        for (float& value : values) value = 0;
      }
  }
};

// Each block has 64 queries and a tile of keys of a head. Where heads share elements, the block of the first of these
// heads sums them up.
__device__ inline void sum_kept(const KernelParams& params, char* kept) {
  if (!kept) return;
  const int keys = key_tiles(params), rows = (params.q_len + kKeptRows - 1) / kKeptRows;
  const int number = last_first(), head = number / (keys * rows), at = number % (keys * rows);
  const int query = at / keys * kKeptRows, k_lo = at % keys * kTileKv;
  each_read([&](auto which) {
    constexpr int read = decltype(which)::value, heads = Variant::heads_that_share(read);
    if constexpr (Variant::in_tiles(read)) {
      if (head % heads != 0) return;
      KeptSums<read> sums = {params, query, k_lo};
#pragma unroll 1
      for (int b = 0; b < params.batch; ++b) {
        const Sequence first = sequence_of(params, b, head);
#pragma unroll 1
        for (int h = head; h < head + heads; ++h) {
          const Sequence seq = sequence_of(params, b, h);
          if (is_visited(params, seq, query / kTileQ, k_lo))
            sums.add(seq, kept_tile(params, kept, seq, h, query / kTileQ, k_lo));
        }
        if constexpr (Variant::has_own_batches(read)) sums.store(first);
      }
      if constexpr (!Variant::has_own_batches(read)) sums.store(sequence_of(params, 0, head));
    }
  });
}

}  // namespace flashjit
