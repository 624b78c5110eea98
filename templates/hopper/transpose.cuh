// V of 8 bits. A warpgroup product reads its second operand along what is summed up, so V is transposed on its way, by
// warps that have nothing else to do. Its keys change places within every 32: P is converted where the scores are, and
// there a thread has keys 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of 16, where the first operand wants four in a row.
#pragma once

#include "templates/hopper/work.cuh"

namespace flashjit {

// Of each warp, from one place of copied V after the other until they have ended.
struct Transposer {
  // 16 columns at a time, and of these 32 keys: four 8x8 matrices of 16 bits, each of two columns of a key.
  static constexpr int kBlockColumns = 16, kUnitKeys = 32, kUnits = kTileKv / kUnitKeys;
  static constexpr int kUnitsAhead = kWarpgroups == 3 ? 2 : 4;  // three warpgroups leave few registers
  static constexpr u32 kBlocks = config.head_dim_v / kBlockColumns;
  static constexpr int kTurns = (kBlocks + kTransposingWarps - 1) / kTransposingWarps;
  // Each instruction of these warps is one less of a warp that computes (unrolled, d=128 1.07; H200, 2026-11-25). Of more
  // turns the registers do not suffice.
  static constexpr int kTurnsUnrolled = kTurns <= 3 ? kTurns : 1;

  const SharedMemory& shared;
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 1;
  // Bytes of a lane's two columns are parted: the even column goes to the first word of a pair and the odd one to the
  // second for the first four lanes of eight, the other way round for the others. So the rows that are stored together,
  // all of the columns 2 i + x, have eight different places in the swizzle.
  const u32 first = lane / 4 < 4 ? 0x6420 : 0x7531, second = first ^ (0x6420 ^ 0x7531);

  __device__ void run() {
    Ring<kStages> copied;
    Ring<kValueStages> ring;
#pragma unroll 1
    while (true) {
      wait_barrier(shared.copied_v_full(copied.stage()), copied.parity());
      if (shared.values_ended(copied.stage())) return;
      wait_barrier(shared.v_empty(ring.stage()), ring.parity() ^ 1);
      transpose(shared.v(ring.stage()), shared.copied_v(copied.stage()));
      fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
        arrive(shared.v_full(ring.stage()));
        arrive(shared.copied_v_empty(copied.stage()));
      }
      copied.advance();
      ring.advance();
    }
  }

  // A lane gives the address of a row of a matrix: to load, of a key and 16 bytes of its columns, to store, of a column and
  // 16 of its keys. Within a panel the chunk of 16 bytes has the row's number modulo 8 XORed in.
  __device__ void transpose(u32 to, u32 from) const {
    const u32 i = lane % 8, column = 2 * i + (lane / 8 % 2 ^ i / 4);
    const u32 half = to & kPanelWidth / 2;  // of the rows, if places lie side by side
    const u32 target = to - half + column * kPanelWidth, target_chunk = (lane / 16 ^ column % 8) * 16 ^ half;
#pragma unroll kTurnsUnrolled
    for (u32 others = 0; others < kBlocks; others += kTransposingWarps) {
      const u32 block = warp + others;
      if (block >= kBlocks) break;
      const u32 row = from + block / 8 * kLayout.copied_v.panel_bytes() + lane * kPanelWidth + (block % 8 ^ i) * 16;
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
};

}  // namespace flashjit
