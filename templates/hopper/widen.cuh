// K and V of 8 bits under Q of 16: TMA brings them as they are, and warps that have nothing else to do widen them to where
// products read them.
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/hopper/work.cuh"

namespace flashjit {

// A tile, by each of the helpers its blocks of eight rows, as many at a time as there are registers for: a warp waits for what
// it has loaded. Eight lanes have the same 16 bytes of different rows, which lie in different banks, and make 32 of them,
// whose second half is where the first is but for one bit of the address.
constexpr int kLoadsAhead = 4;
template <int head_dim>
__device__ inline void widen_tile(u32 to, const PanelLayout& target, u32 from, const PanelLayout& given, u32 warp) {
  constexpr int kRows = 8, kChunks = head_dim / kChunkBytes, kGroups = (kChunks + 3) / 4, kBlocks = kTileKv / kRows,
                kAhead = kLoadsAhead > kGroups ? kLoadsAhead / kGroups : 1, kBlockBytes = kRows * kPanelWidth;
  const u32 lane = threadIdx.x % 32, row = lane % kRows, chunk = lane / kRows;
  const u32 load = from + row * kPanelWidth + (chunk ^ row) * kChunkBytes,
            store = to + row * kPanelWidth + (chunk * 2 ^ row) * kChunkBytes;
  const auto each = [&](u32 first, const auto& visit) {
#pragma unroll
    for (int i = 0; i < kAhead * kGroups; ++i) {
      const int g = i % kGroups;
      const u32 block = first + i / kGroups * kHelperWarps;
      if (block < kBlocks && (kChunks % 4 == 0 || g * 4 + chunk < kChunks)) visit(i, g, block * kBlockBytes);
    }
  };
#pragma unroll 1
  for (u32 first = warp; first < kBlocks; first += kHelperWarps * kAhead) {
    uint4 bytes[kAhead * kGroups];
    each(first, [&](int i, int g, u32 rows) {
      bytes[i] = load_shared((load ^ g % 2 * 4 * kChunkBytes) + g / 2 * given.panel_bytes() + rows);
    });
    each(first, [&](int i, int g, u32 rows) {
      const u32 at = store + g * target.panel_bytes() + rows;
      store_shared(at, widened<config.cache>(make_uint2(bytes[i].x, bytes[i].y)));
      store_shared(at ^ kChunkBytes, widened<config.cache>(make_uint2(bytes[i].z, bytes[i].w)));
    });
  }
}

// Is the phase of this parity complete? As all lanes of the warp are told.
__device__ inline bool is_complete(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n .reg .pred done;\n mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return __all_sync(0xffffffff, done);
}

struct Widener {
  const SharedMemory& shared;
  const u32 warp;  // of the helpers
  Ring<kStages> keys = {}, values = {};

  __device__ bool takes_values() const {
    return is_complete(shared.copied_v_full(values.stage()), values.parity()) &&
           (shared.values_ended(values.stage()) || is_complete(shared.v_empty(values.stage()), values.parity() ^ 1));
  }
  __device__ bool takes_keys() const {
    return is_complete(shared.copied_k_full(keys.stage()), keys.parity()) &&
           is_complete(shared.k_empty(keys.stage()), keys.parity() ^ 1);
  }
  __device__ static void hand_over(u32 full, u32 empty) {
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      arrive(full);
      arrive(empty);
    }
  }
  __device__ void widen_keys() {
    const u32 stage = keys.stage();
    widen_tile<config.head_dim_qk>(shared.k(stage), kLayout.k, shared.copied_k(stage), kLayout.copied_k, warp);
    hand_over(shared.k_full(stage), shared.copied_k_empty(stage));
    keys.advance();
  }

  // Whichever is there and has a place: one that waited for a place of K might keep V from those who will free it.
  __device__ void run() {
#pragma unroll 1
    while (true) {
      if (takes_values()) {
        if (shared.values_ended(values.stage())) break;
        const u32 stage = values.stage();
        widen_tile<config.head_dim_v>(shared.v(stage), kLayout.v, shared.copied_v(stage), kLayout.copied_v, warp);
        hand_over(shared.v_full(stage), shared.copied_v_empty(stage));
        values.advance();
      } else if (takes_keys()) {
        widen_keys();
      } else {
        __nanosleep(20);
      }
    }
    while (keys.count != values.count) {
      wait_barrier(shared.copied_k_full(keys.stage()), keys.parity());
      wait_barrier(shared.k_empty(keys.stage()), keys.parity() ^ 1);
      widen_keys();
    }
  }
};

}  // namespace flashjit
