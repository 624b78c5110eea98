// Computes the scores of an index by products of warpgroups (sm_90a, elements of 8 bits). A warpgroup copies tiles of
// 128 keys into the slots of a ring, and two others multiply 64 of these keys each by the heads of a few queries. Keys
// are rows of the product, and the heads of all queries are its columns, so that the four threads of a row hold
// everything that is summed up for a score.
#pragma once

#include "matrix.gen.cuh"
#include "templates/hopper/rows.cuh"
#include "templates/index/work.cuh"
#include "templates/tile_copy.cuh"

namespace flashjit {

constexpr HopperIndexLayout kIndexPlaces = hopper_index_layout(config);
constexpr int kColumns = index_columns(config), kQueryColumns = columns_of_query(config), kQueries = config.tile_q;
// These warps compute.
constexpr int kIndexWarps = kIndexConsumers * kThreadsPerWarpgroup / 32;
constexpr int kHalves = index_halves(config), kHalfColumns = kColumns / kHalves, kHalfQueries = kQueries / kHalves;
constexpr int kBoxKeys = keys_of_index_box(config), kBoxBytes = kBoxKeys * kHopperIndexDim;
// At this barrier all warps that compute have copied their share of Q; 0 is __syncthreads.
constexpr int kQueriesBarrier = 1;
constexpr u32 kKeysOfPage = config.page_size > 0 ? config.page_size : 1;

// Slots of a ring, used one after the other.
struct IndexRing {
  u32 memory;
  u32 stage = 0, parity = 0;
  __device__ u32 keys() const { return memory + kIndexPlaces.k_offset + stage * kHopperIndexSlotBytes; }
  __device__ u32 scales() const { return memory + kIndexPlaces.scale_offset + stage * kHopperIndexKeys * 4; }
  __device__ u32 full() const { return memory + kIndexPlaces.barrier_offset + stage * 16; }
  __device__ u32 empty() const { return full() + 8; }
  __device__ void advance() {
    if (++stage < config.stages) return;
    stage = 0;
    parity ^= 1;
  }
};

__device__ inline void init_ring(IndexRing ring) {
  for (; ring.parity == 0; ring.advance()) {
    init_barrier(ring.full(), kHopperIndexKeys / kBoxKeys + (has_key_scales(config) ? kThreadsPerWarpgroup : 0));
    init_barrier(ring.empty(), kIndexWarps);
  }
  publish_barriers();
}

// The threads that compute copy the heads of each query to rows of a panel. Rows behind the last head, or query, are
// zeros.
__device__ inline void copy_query_heads(const KernelParams& params, const IndexWork& w, u32 to) {
  constexpr int kChunks = kHopperIndexDim / kChunkBytes, kThreads = kIndexConsumers * kThreadsPerWarpgroup;
  const auto* q = static_cast<const unsigned char*>(params.q);
  for (int i = threadIdx.x % kThreads; i < kColumns * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks, head = row % kQueryColumns, query = w.q_lo + row / kQueryColumns;
    const bool there = head < group_size(config) && query < w.seq.q_len;
    const Int64 from = query_row(params.q_stride, w.seq, w.seq.h + (there ? head : 0), there ? query : w.q_lo);
    copy_async<kChunkBytes>(to + row * kPanelWidth + (chunk ^ row % 8) * kChunkBytes, q + from + chunk * kChunkBytes,
                            there);
  }
  commit_copies();
}

// ---- the warpgroup that copies ----

static_assert(kThreadsPerWarpgroup == kHopperIndexKeys);

// Copies a box of keys from `key` on, whose page has this number.
__device__ inline void copy_key_box(const KernelParams& params, const TensorMaps& maps, const IndexWork& w, u32 to,
                                    u32 barrier, int key, u32 number) {
  arrive_expecting(barrier, kBoxBytes);
  if constexpr (kKeyRows == Rows::paged) {
    const u32 page = min(number, static_cast<u32>(params.pages) - 1), row = static_cast<u32>(key) % kKeysOfPage;
    copy_box(to, maps.k, barrier, kEvictLast, 0, static_cast<int>(row), w.seq.hk, static_cast<int>(page));
  } else {
    copy_keys(to, maps.k, barrier, w.seq, 0, key);
  }
}

// Each thread has a key of each tile. It copies the key's scale, and the thread with the first key of a box has TMA
// copy the box. The number of its page is read one tile before. Behind the last key, the last page will do, because
// keys there are hidden.
__device__ inline void copy_tiles(const KernelParams& params, const TensorMaps& maps, const IndexWork& w,
                                  IndexRing ring) {
  const auto scales =
      key_rows(params, params.scale_k_stride, params.scale_k + key_begin(params.scale_k_stride, w.seq), w.seq);
  const int thread = static_cast<int>(threadIdx.x), last = w.seq.k_len - 1;
  const auto number_in = [&](int tile) { return scales.number_of(min(tile * kHopperIndexKeys + thread, last)); };
  u32 number = number_in(w.first);
  for (int tile = w.first; tile < w.end; ++tile) {
    const int key = tile * kHopperIndexKeys + thread;
    const u32 next = number_in(tile + 1);
    wait_barrier(ring.empty(), ring.parity ^ 1);
    if (thread % kBoxKeys == 0)
      copy_key_box(params, maps, w, ring.keys() + thread * kPanelWidth, ring.full(), key, number);
    if constexpr (has_key_scales(config)) {
      if (params.scale_k)
        copy_async<4>(ring.scales() + thread * 4, scales.numbered_row(number, min(key, last)), key <= last);
      arrive_when_copied(ring.full());
    }
    ring.advance();
    number = next;
  }
}

// ---- the warpgroups that compute ----

// A thread has two of every eight columns.
__device__ inline void load_weights(const KernelParams& params, const IndexWork& w, float (&weights)[kColumns / 4]) {
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    const int column = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
    const int head = column % kQueryColumns, query = w.q_lo + column / kQueryColumns;
    const bool there = head < group_size(config) && query < w.seq.q_len;
    weights[i] = there ? weights_of(params, w.seq, query)[head] : 0.0f;
  }
}

// The four threads of a row add up their sums for each query in the thread that stores the result: each thread stores
// one of four queries, or each pair one of two, or all of them the only one.
constexpr int kSummed = kHalfQueries <= 2 ? kHalfQueries : round_up(kHalfQueries, 4), kStored = (kSummed + 3) / 4;
__device__ inline float of_pair(float even, float odd, u32 lane, int step) {
  const bool is_odd = lane & step;
  return (is_odd ? odd : even) + __shfl_xor_sync(0xffffffff, is_odd ? even : odd, step);
}
__device__ inline void add_up_threads(const float (&sums)[kSummed], float (&stored)[kStored], u32 lane) {
  if constexpr (kSummed == 1) {
    const float half = sums[0] + __shfl_xor_sync(0xffffffff, sums[0], 1);
    stored[0] = half + __shfl_xor_sync(0xffffffff, half, 2);
  } else if constexpr (kSummed == 2) {
    const float half = of_pair(sums[0], sums[1], lane, 1);
    stored[0] = half + __shfl_xor_sync(0xffffffff, half, 2);
  } else {
#pragma unroll
    for (int i = 0; i < kStored; ++i) {
      const float even = of_pair(sums[4 * i], sums[4 * i + 2], lane, 2),
                  odd = of_pair(sums[4 * i + 1], sums[4 * i + 3], lane, 2);
      stored[i] = of_pair(even, odd, lane, 1);
    }
  }
}
// Returns which query a thread's result number i belongs to; stores_key() returns whether the thread stores the result
// of its first or second key.
__device__ inline int stored_query(int i, u32 lane) {
  return kSummed == 1 ? 0 : kSummed == 2 ? static_cast<int>(lane % 2) : 4 * i + static_cast<int>(lane % 4);
}
__device__ inline bool stores_key(int which, u32 lane) {
  return kSummed == 1   ? lane % 4 == static_cast<u32>(which)
         : kSummed == 2 ? lane / 2 % 2 == static_cast<u32>(which)
                        : true;
}

// Adds up positive products times weights over the heads of each query of a half, for the thread's first or second key.
__device__ inline void add_up_heads(const float (&s)[kHalfColumns / 2], const float (&weights)[kColumns / 4], int half,
                                    int which, float (&sums)[kSummed]) {
  constexpr int kOfQuery = kQueryColumns / 4;
#pragma unroll
  for (int query = 0; query < kSummed; ++query) {
    sums[query] = 0;
    if (query >= kHalfQueries) continue;
#pragma unroll
    for (int i = 0; i < kOfQuery; ++i) {
      const int column = query * kOfQuery + i;
      sums[query] +=
          fmaxf(s[column / 2 * 4 + which * 2 + column % 2], 0.0f) * weights[half * kHalfColumns / 4 + column];
    }
  }
}

struct IndexConsumer {
  const KernelParams& params;
  const IndexWork& w;
  u32 own_keys;  // The first key of this warpgroup in a tile.
  float scale;   // The scale of all keys, where they have no scales of their own.
  // Rows of scores of the queries that this thread stores; null if a query does not exist.
  float* rows[kHalves][kStored];
  float weights[kColumns / 4];
  float s[kHalves][kHalfColumns / 2];

  __device__ IndexConsumer(const KernelParams& params, const IndexWork& w, float* scores, u32 own_keys)
      : params(params), w(w), own_keys(own_keys) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kStored; ++i) {
        const int query = stored_query(i, lane), q = query_of(half, query);
        rows[half][i] = query < kHalfQueries && q < w.seq.q_len ? scores_of(params, scores, w.seq, q) : nullptr;
      }
    scale = has_key_scales(config) ? 1.0f : scale_of(params.scale_k, params.scale_k_stride, w.seq.b, w.seq.hk, 0);
  }
  __device__ int query_of(int half, int query) const { return w.q_lo + half * kHalfQueries + query; }

  __device__ void store(const float (&stored)[kStored], float scale, int half, int which, int key) const {
    const u32 lane = threadIdx.x % 32;
    if (!stores_key(which, lane) || key >= params.k_len) return;
#pragma unroll
    for (int i = 0; i < kStored; ++i) {
      if (!rows[half][i]) continue;
      const bool hidden = is_hidden(params, w.seq, query_of(half, stored_query(i, lane)), key);
      rows[half][i][key] = hidden ? -kInfinity : stored[i] * scale;
    }
  }

  // Begins the products of a half with the keys of a slot.
  __device__ void begin_half(const IndexRing& ring, int half) {
    const u32 queries = ring.memory + half * kHalfColumns * kPanelWidth, keys = ring.keys() + own_keys * kPanelWidth;
    begin_products();
    multiply_scores(s[half], uniform(descriptor(keys)), uniform(descriptor(queries)));
    commit_products();
  }
  __device__ void add_up_half(const float (&scales)[2], int half, int first_key) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float sums[kSummed], stored[kStored];
      add_up_heads(s[half], weights, half, which, sums);
      add_up_threads(sums, stored, threadIdx.x % 32);
      store(stored, scales[which], half, which, first_key + which * 8);
    }
  }

  // While a half is added up, products of the other one are under way: both begin together, and end one after the
  // other.
  __device__ void multiply(IndexRing ring) {
    const u32 lane = threadIdx.x % 32, row = own_keys + threadIdx.x % kThreadsPerWarpgroup / 32 * 16 + lane / 4;
    for (int tile = w.first; tile < w.end; ++tile, ring.advance()) {
      wait_barrier(ring.full(), ring.parity);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) begin_half(ring, half);
      float scales[2] = {scale, scale};
      if (has_key_scales(config) && params.scale_k) {
        scales[0] = __uint_as_float(load_shared_word(ring.scales() + row * 4));
        scales[1] = __uint_as_float(load_shared_word(ring.scales() + (row + 8) * 4));
      }
      const int key = tile * kHopperIndexKeys + static_cast<int>(row);
      if constexpr (kHalves > 1) {
        wait_products<1>();
        pin_registers(s[0]);
        add_up_half(scales, 0, key);
      }
      wait_products<0>();
      pin_registers(s[kHalves - 1]);
      __syncwarp();
      if (lane == 0) arrive(ring.empty());
      add_up_half(scales, kHalves - 1, key);
    }
  }

  __device__ void run(const IndexRing& ring) {
    copy_query_heads(params, w, ring.memory);
    load_weights(params, w, weights);
    wait_copies<0>();
    fence_async_proxy();
    sync_named(kQueriesBarrier, kIndexConsumers * kThreadsPerWarpgroup);
    multiply(ring);
  }
};

// Writes scores of keys that no query sees; `threads` threads do it.
__device__ inline void write_unseen(const KernelParams& params, float* scores, const IndexWork& w, int threads) {
  visit_unseen(params, scores, w, [&](float* of_query, int first, int end) {
    for (int key = first + static_cast<int>(threadIdx.x); key < end; key += threads) of_query[key] = -kInfinity;
  });
}

__device__ inline void index_tiles_by_warpgroups(const KernelParams& params, const TensorMaps& maps, float* scores) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const IndexWork w = index_work(params);
  const IndexRing ring{shared_address(shared)};
  if (w.first >= w.end) return write_unseen(params, scores, w, kHopperIndexThreads);
  if (threadIdx.x == 0) prefetch_map(maps.k), init_ring(ring);
  __syncthreads();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x / kThreadsPerWarpgroup));
  if (warpgroup == 0) {
    if constexpr (moves_registers(config)) shrink_registers<kIndexProducerRegisters>();
    copy_tiles(params, maps, w, ring);
    write_unseen(params, scores, w, kThreadsPerWarpgroup);
  } else {
    if constexpr (moves_registers(config)) grow_registers<kIndexConsumerRegisters>();
    IndexConsumer(params, w, scores, (warpgroup - 1) * kKeysOfConsumer).run(ring);
  }
}

}  // namespace flashjit
