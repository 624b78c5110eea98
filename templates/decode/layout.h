// Sizes of the decode family that follow from a KernelConfig. Shared by host and device.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

constexpr int decode_threads(const KernelConfig& c) { return c.warps * 32; }

// Lanes read 16 bytes of a row at a time: four lanes the 32 columns of Q and K that two matrix instructions take, eight
// the 64 of V that make the rows of four. What lies beyond the head dim counts as zero, or is not written.
constexpr int kKeyColumns = 32, kValueColumns = 64;
constexpr int key_pieces(const KernelConfig& c) { return (c.head_dim_qk + kKeyColumns - 1) / kKeyColumns; }
constexpr int value_pieces(const KernelConfig& c) { return (c.head_dim_v + kValueColumns - 1) / kValueColumns; }

// Rows of a tile: an accumulator of the second product holds eight of them.
constexpr int kOctet = 8;
constexpr int octets(const KernelConfig& c) { return c.tile_q / kOctet; }

// Neighbouring heads, whose rows of a token lie side by side, are read at the same time by neighbouring blocks.
constexpr int heads_side_by_side(const KernelConfig& c) {
  for (int heads = 8; heads > 1; heads /= 2) {
    if (c.heads_kv % heads == 0) return heads;
  }
  return 1;
}

// With one stage tiles go straight to registers; with more each warp has a ring of its own in shared memory.
constexpr bool has_ring(const KernelConfig& c) { return c.stages > 1; }

// What a warp, or a block, passes on of a row besides its part of O: reference, sum, largest score.
constexpr int kRowState = 4;

// A part of a tile's result, in floats: O, then what belongs to its rows.
constexpr int part_floats(const KernelConfig& c) { return c.tile_q * (c.head_dim_v + kRowState); }
// A block begins with what others have begun, and ends with what others go on with.
constexpr int kPartsPerBlock = 2;

// Shared memory: [ rings of the warps | their parts of a tile | barriers of the rings | scratch ]. Tiles in rings lie in
// panels as TMA writes them.
struct DecodeLayout {
  PanelLayout k, v;
  int stage_bytes = 0, ring_bytes = 0;
  int part_offset = 0, barrier_offset = 0, scratch_offset = 0;
  int bytes = 0;
};

constexpr int kScratchInts = 32 + 4;  // sums of warps, and a place

constexpr DecodeLayout decode_layout(const KernelConfig& c) {
  DecodeLayout s;
  s.k = panel_layout(c.tile_kv, c.head_dim_qk, c.element);
  s.v = panel_layout(c.tile_kv, c.head_dim_v, c.element);
  s.stage_bytes = s.k.bytes() + s.v.bytes();
  s.ring_bytes = has_ring(c) ? c.stages * s.stage_bytes : 0;
  s.part_offset = c.warps * s.ring_bytes;
  s.barrier_offset = s.part_offset + c.warps * part_floats(c) * 4;
  s.scratch_offset = s.barrier_offset + (has_ring(c) ? c.warps * c.stages * 8 : 0);
  s.bytes = s.scratch_offset + kScratchInts * 4;
  return s;
}

// ---- the second launch: threads are columns, four at a time, by parts of a row ----

constexpr int kColumnLanes = 16, kPartLanes = 16, kCombineThreads = kColumnLanes * kPartLanes;
// Scratch, and columns and state of what half a warp has.
constexpr int kCombineBytes = kScratchInts * 4 + kCombineThreads / 32 * kColumnLanes * 32;

}  // namespace flashjit
