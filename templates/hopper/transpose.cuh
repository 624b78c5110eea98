// V of 8 bits. A warpgroup product reads its second operand along what is summed up, so V is transposed on its way, by
// warps that have nothing else to do. Its keys change places within every 32: P is converted where the scores are, and
// there a thread has keys 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of 16, where the first operand wants four in a row.
#pragma once

#include "templates/hopper/work.cuh"

namespace flashjit {

// 16 columns at a time, and of these 32 keys: four 8x8 matrices of 16 bits, each of two columns of a key.
constexpr int kBlockColumns = 16, kUnitKeys = 32, kUnits = kTileKv / kUnitKeys;
constexpr int kUnitsAhead = kTransposesValues && kWarpgroups == 3 ? 2 : 4;  // three warpgroups leave few registers
constexpr u32 kBlocks = (config.head_dim_v + kBlockColumns - 1) / kBlockColumns;           // none of 8 bits is cut
constexpr PanelLayout kGivenV = panel_layout(kTileKv, config.head_dim_v, config.element);  // as they are

// A tile, by each of `warps` its blocks of columns. A lane gives the address of a row of a matrix: to load, of a key and 16
// bytes of its columns, to store, of a column and 16 of its keys. Within a panel the chunk of 16 bytes has the row's number
// modulo 8 XORed in. Bytes of a lane's two columns are parted: the even column goes to the first word of a pair and the odd
// one to the second for the first four lanes of eight, the other way round for the others. So the rows that are stored
// together, all of the columns 2 i + x, have eight different places in the swizzle.
template <int warps>
__device__ inline void transpose_tile(u32 to, u32 from, u32 warp) {
  const u32 lane = threadIdx.x % 32, i = lane % 8, column = 2 * i + (lane / 8 % 2 ^ i / 4);
  const u32 first = lane / 4 < 4 ? 0x6420 : 0x7531, second = first ^ (0x6420 ^ 0x7531);
  const u32 half = to & kPanelWidth / 2;  // of the rows, if places lie side by side
  // Each instruction of warps beside the loop is one less of a warp that computes, so turns are unrolled [M84]. The
  // registers do not suffice to unroll more turns.
  constexpr int kTurns = (kBlocks + warps - 1) / warps, kTurnsUnrolled = kTurns <= 3 ? kTurns : 1;
  const u32 target = to - half + column * kPanelWidth, target_chunk = (lane / 16 ^ column % 8) * 16 ^ half;
#pragma unroll kTurnsUnrolled
  for (u32 others = 0; others < kBlocks; others += warps) {
    const u32 block = warp + others;
    if (block >= kBlocks) break;
    const u32 row = from + block / 8 * kGivenV.panel_bytes() + lane * kPanelWidth + (block % 8 ^ i) * 16;
    const u32 columns = target + block * kBlockColumns * kPanelWidth;
#pragma unroll
    for (int ahead = 0; ahead < kUnits; ahead += kUnitsAhead) {
      u32 f[kUnitsAhead][4];
#pragma unroll
      for (int j = 0; j < kUnitsAhead && ahead + j < kUnits; ++j)
        load_matrices_transposed(f[j], row + (ahead + j) * kUnitKeys * kPanelWidth);
#pragma unroll
      for (int j = 0; j < kUnitsAhead && ahead + j < kUnits; ++j) {
        const int unit = ahead + j;
        store_matrices(columns + unit / 4 * kLayout.v.panel_bytes() + (target_chunk ^ unit % 4 * 32),
                       __byte_perm(f[j][0], f[j][1], first), __byte_perm(f[j][0], f[j][1], second),
                       __byte_perm(f[j][2], f[j][3], first), __byte_perm(f[j][2], f[j][3], second));
      }
    }
  }
}

// In the loop: the vocabulary of each of its warps.
struct TransposerState {
  const SharedMemory& shared;
  const u32 warp = threadIdx.x / 32 - 1;
  Ring<kStages> copied = {};
  Ring<kValueStages> ring = {};

  __device__ bool has_ended() const { return shared.values_ended(copied.stage()); }
};

// ---- ahead of the loop ----

// A tile of `keys` keys, and behind them zeros, from rows of V to `tile`.
__device__ inline void transpose_rows(const char* rows, Int64 stride, int keys, uint4* tile) {
  extern __shared__ __align__(1024) char memory[];
  constexpr int kChunks = kBlocks * kBlockColumns / kChunkBytes;
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

// The next 16 keys of a column, of which there are so many. Packed sequences begin anywhere.
__device__ inline uint4 load_keys(const unsigned char* at, int keys) {
  if (keys >= kChunkBytes && reinterpret_cast<u64>(at) % kChunkBytes == 0) return *reinterpret_cast<const uint4*>(at);
  u32 words[4] = {};
#pragma unroll
  for (int i = 0; i < kChunkBytes; ++i)
    if (i < keys) words[i / 4] |= static_cast<u32>(at[i]) << i % 4 * 8;
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The same from columns of V^T: keys change places, and that is all.
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

// A block for each tile of keys of each KV head.
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
