// Widens K and V of 8 bits under Q of 16. This launch before the loop converts them to the type of products, and leaves
// tiles of both as shared memory is to have them. It walks through pages, so that the loop need not. Widening in the
// loop, on the way to the products, took much longer [M85].
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/hopper/work.cuh"
#include "templates/kv_rows.cuh"

namespace flashjit {

// Returns whether any query of any head of the group sees keys from first to last. A window leaves most of a cache
// unread.
__device__ inline bool is_seen(const KernelParams& params, Sequence seq, int first, int last) {
  constexpr int kHeadsOfMask = config.has_mask ? group_size(config) : 1;
#pragma unroll 1
  for (int i = 0; i < kHeadsOfMask && seq.q_len > 0; ++i, ++seq.h) {
    const int begin = Variant::kv_begin(params, seq, 0, seq.q_len - 1);
    const int end = Variant::kv_end(params, seq, 0, seq.q_len - 1);
    if (begin <= last && first < end) return true;
  }
  return false;
}

// Widens K or V from key `first` on, eight columns at a time, with zeros behind the length and the head dim.
constexpr int kWidenedColumns = 8;
template <int head_dim>
__device__ inline void widen_rows(const KernelParams& params, const Sequence& seq, const void* elements,
                                  const Strides& stride, int first, const PanelLayout& layout, char* tile) {
  constexpr int kChunks = round_up(head_dim, kPanelWidth / 2) / kWidenedColumns, kAll = kTileKv * kChunks,
                kChunksOfPanel = kPanelWidth / kChunkBytes;
  // The number of loads under way. With eight loads ptxas spills for fp16 and d=24 (NVRTC 13.0), because predicates are
  // too few for the conditions of the loads.
  constexpr int kAhead = head_dim % 16 == 0 ? 8 : 4;
  const auto rows = key_rows(params, stride, static_cast<const Cached*>(elements) + key_begin(stride, seq), seq);
#pragma unroll 1
  for (int begin = threadIdx.x; begin < kAll; begin += kAhead * kWideningThreads) {
    uint2 bytes[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = begin + j * kWideningThreads, key = first + i / kChunks, chunk = i % kChunks;
      bytes[j] = {};
      if (i < kAll && key < seq.k_len && chunk * kWidenedColumns < head_dim)
        bytes[j] = *reinterpret_cast<const uint2*>(rows.row(key) + chunk * kWidenedColumns);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = begin + j * kWideningThreads, row = i / kChunks, chunk = i % kChunks;
      const int at = chunk / kChunksOfPanel * layout.panel_bytes() + row * kPanelWidth +
                     (chunk % kChunksOfPanel ^ row % kSwizzledRows) * kChunkBytes;
      if (i < kAll) *reinterpret_cast<uint4*>(tile + at) = widened<config.cache>(bytes[j]);
    }
  }
}

// Each block widens a tile of keys of a KV head.
__device__ inline void widen_keys(const KernelParams& params, char* widened) {
  const int number = blockIdx.x / config.heads_kv, head = blockIdx.x % config.heads_kv;
  const auto [b, tile] = TileAxis<Along::keys>::tile_of(params, number);
  const Sequence seq = sequence_of(params, b, head * group_size(config));
  const int first = tile * kTileKv, last = min(first + kTileKv, seq.k_len) - 1;
  if (last < first || !is_seen(params, seq, first, last)) return;
  char* to = widened + static_cast<Int64>(blockIdx.x) * made_tile_bytes(config);
  widen_rows<config.head_dim_qk>(params, seq, params.k, params.k_stride, first, kLayout.k, to);
  widen_rows<config.head_dim_v>(params, seq, params.v, params.v_stride, first, kLayout.v, to + made_keys_bytes(config));
}

}  // namespace flashjit
