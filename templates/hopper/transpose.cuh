// Transposes V of 8 bits. A warpgroup product reads its second operand along the dimension that is summed up, so warps
// that have nothing else to do transpose V on its way. They also exchange keys within every 32: P is converted where
// the scores are, and a thread has the scores of keys 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of 16 there, while the first
// operand wants four keys in a row.
#pragma once

#include "templates/hopper/work.cuh"
#include "templates/values/transposed_tile.cuh"

namespace flashjit {

constexpr int kUnitsAhead = kTransposesValues && kWarpgroups == 3 ? 2 : 4;  // Three warpgroups leave few registers.
constexpr PanelLayout kGivenV = panel_layout(kTileKv, config.head_dim_v, config.element);  // V as it is given.

// Transposes a tile. Each of `warps` warps takes its blocks of columns.
template <int warps>
__device__ inline void transpose_tile(u32 to, u32 from, u32 warp) {
  transpose_tile<warps, kTileKv, config.head_dim_v, kLayout.v.panel_bytes(), 1, kUnitsAhead>(to, from, warp, AllRows());
}

// The vocabulary of each transposing warp in the loop.
struct TransposerState {
  const SharedMemory& shared;
  const u32 warp = threadIdx.x / 32 - 1;
  Ring<kStages> copied = {};
  Ring<kValueStages> ring = {};

  __device__ bool has_ended() const { return shared.values_ended(copied.stage()); }
};

// ---- ahead of the loop ----

// Transposes a tile of `keys` keys, with zeros behind them, from rows of V to `tile`.
__device__ inline void transpose_rows(const char* rows, Int64 stride, int keys, uint4* tile) {
  extern __shared__ __align__(1024) char memory[];
  constexpr int kChunks = round_up(config.head_dim_v, kBlockColumns) / kChunkBytes;
  const u32 from = shared_address(memory), to = from + round_up(kGivenV.bytes(), 1024);
#pragma unroll 4
  for (int i = threadIdx.x; i < kTileKv * kChunks; i += kTransposingThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    copy_async<kChunkBytes>(
        from + chunk / 8 * kGivenV.panel_bytes() + row * kPanelWidth + (chunk % 8 ^ row % 8) * kChunkBytes,
        rows + row * stride + chunk * kChunkBytes, row < keys);
  }
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  transpose_tile<kTransposingThreads / 32>(to, from, threadIdx.x / 32);
  __syncthreads();
  for (int i = threadIdx.x; i < kLayout.v.bytes() / kChunkBytes; i += kTransposingThreads)
    tile[i] = load_shared(to + i * kChunkBytes);
}

// Loads the next 16 keys of a column that has `keys` keys left. Packed sequences begin at any address.
__device__ inline uint4 load_keys(const unsigned char* at, int keys) {
  if (keys >= kChunkBytes && reinterpret_cast<u64>(at) % kChunkBytes == 0) return *reinterpret_cast<const uint4*>(at);
  u32 words[4] = {};
#pragma unroll
  for (int i = 0; i < kChunkBytes; ++i)
    if (i < keys) words[i / 4] |= static_cast<u32>(at[i]) << i % 4 * 8;
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Makes the same tile from columns of V^T, whose keys only have to be exchanged.
__device__ inline void order_columns(const char* columns, Int64 stride, int keys, uint4* tile) {
  constexpr int kChunks = kTileKv / kChunkBytes;
  for (int i = threadIdx.x; i < config.head_dim_v * kChunks; i += kTransposingThreads) {
    constexpr int kOfPanel = kPanelWidth / kChunkBytes;
    const int column = i / kChunks, chunk = i % kChunks, first = chunk * kChunkBytes;
    const auto* at = reinterpret_cast<const unsigned char*>(columns) + column * stride + first;
    const uint4 given = load_keys(at, keys - first);
    tile[(chunk / kOfPanel * kLayout.v.rows + column) * kOfPanel + (chunk % kOfPanel ^ column % 8)] =
        make_uint4(__byte_perm(given.x, given.z, 0x5410), __byte_perm(given.x, given.z, 0x7632),
                   __byte_perm(given.y, given.w, 0x5410), __byte_perm(given.y, given.w, 0x7632));
  }
}

// Each block transposes a tile of keys of a KV head.
__device__ inline void transpose_values(const KernelParams& params, char* transposed) {
  const int number = blockIdx.x / config.heads_kv, head = blockIdx.x % config.heads_kv;
  const auto [b, tile] = TileAxis<Along::keys>::tile_of(params, number);
  const Sequence seq = sequence_of(params, b, head * group_size(config));
  const int key = tile * kTileKv, keys = seq.k_len - key;
  if (keys <= 0) return;
  const Strides& stride = params.v_stride;
  auto* to = reinterpret_cast<uint4*>(transposed + static_cast<Int64>(blockIdx.x) * kLayout.v.bytes());
  if constexpr (config.v_transposed) {
    const char* columns = static_cast<const char*>(params.v) + value_column(stride, seq, key);
    order_columns(columns, stride.token, keys, to);
  } else {
    const char* rows = static_cast<const char*>(params.v) + key_begin(stride, seq) + key * stride.token;
    transpose_rows(rows, stride.token, keys, to);
  }
}

}  // namespace flashjit
