// Transposes a tile of V of 8 bits, from shared memory to shared memory, so that its keys lie along rows, as products
// of 8 bits read them.
#pragma once

#include "templates/device.cuh"
#include "templates/tile_layouts.h"

namespace flashjit {

// A unit is 16 columns of 32 keys: four 8x8 matrices of 16 bits, each of two columns of a key.
constexpr int kBlockColumns = 16, kUnitKeys = 32;

// Every key of a tile has a row.
struct AllRows {
  __device__ u32 operator()(u32 pair, int) const { return pair; }
};

// Transposes a tile of `keys` keys and `columns` columns. Each of `warps` warps takes its blocks of columns, `ahead`
// units of `blocks` at a time. Keys change places within every 32 (hopper/transpose.cuh gives the reason). A lane gives
// the address of a row of a matrix: to load, the row is a key and 16 bytes of its columns, and to store, a column and
// 16 of its keys. Within a panel the chunk of 16 bytes has the row's number modulo 8 XORed in. Bytes of a lane's two
// columns are parted: for the first four lanes of eight the even column goes to the first word of a pair and the odd
// one to the second, and for the others the other way round. So the rows that are stored together, all of the columns 2
// i + x, have eight different places in the swizzle. `filter` gets each word, which has two columns of two neighbouring
// keys, and the first of these keys.
template <int warps, int keys, int columns, int to_panel_bytes, int blocks, int ahead, class Filter>
__device__ inline void transpose_tile(u32 to, u32 from, u32 warp, const Filter& filter) {
  constexpr int kUnits = keys / kUnitKeys;
  constexpr u32 kBlocks = (columns + kBlockColumns - 1) / kBlockColumns;  // No block of 8 bits is cut.
  constexpr PanelLayout kGiven = panel_layout(keys, columns, 1);
  const u32 lane = threadIdx.x % 32, i = lane % 8, column = 2 * i + (lane / 8 % 2 ^ i / 4);
  const u32 first = lane / 4 < 4 ? 0x6420 : 0x7531, second = first ^ (0x6420 ^ 0x7531);
  const u32 half = to & kPanelWidth / 2;  // Places that lie side by side are halves of rows.
  // Each instruction of warps beside the loop takes the place of one of a warp that computes, so turns are unrolled
  // [M84]. Registers do not suffice to unroll more turns.
  constexpr bool kIsCut = kBlocks % (warps * blocks) != 0;
  constexpr int kTurns = (kBlocks + warps - 1) / warps, kTurnsUnrolled = kTurns <= 3 ? kTurns : 1;
  const u32 target = to - half + column * kPanelWidth, target_chunk = (lane / 16 ^ column % 8) * 16 ^ half;
#pragma unroll kTurnsUnrolled
  for (u32 others = 0; others < kBlocks; others += warps * blocks) {
#pragma unroll
    for (int begin = 0; begin < kUnits; begin += ahead) {
      u32 f[blocks][ahead][4];
#pragma unroll
      for (int b = 0; b < blocks; ++b) {
        const u32 block = warp + others + b * warps;
        if (kIsCut && block >= kBlocks) break;
        const u32 row = from + block / 8 * kGiven.panel_bytes() + lane * kPanelWidth + (block % 8 ^ i) * 16;
#pragma unroll
        for (int j = 0; j < ahead && begin + j < kUnits; ++j)
          load_matrices_transposed(f[b][j], row + (begin + j) * kUnitKeys * kPanelWidth);
      }
#pragma unroll
      for (int b = 0; b < blocks; ++b) {
        const u32 block = warp + others + b * warps;
        if (kIsCut && block >= kBlocks) break;
        const u32 to_columns = target + block * kBlockColumns * kPanelWidth;
#pragma unroll
        for (int j = 0; j < ahead && begin + j < kUnits; ++j) {
          const int unit = begin + j;
          u32(&m)[4] = f[b][j];
#pragma unroll
          for (int k = 0; k < 4; ++k) m[k] = filter(m[k], unit * kUnitKeys + k * 8 + static_cast<int>(lane) % 4 * 2);
          store_matrices(to_columns + unit / 4 * to_panel_bytes + (target_chunk ^ unit % 4 * 32),
                         __byte_perm(m[0], m[1], first), __byte_perm(m[0], m[1], second),
                         __byte_perm(m[2], m[3], first), __byte_perm(m[2], m[3], second));
        }
      }
    }
  }
}

}  // namespace flashjit
