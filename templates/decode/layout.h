// Sizes that the decode family derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

constexpr int decode_threads(const KernelConfig& c) { return c.decode.warps * 32; }

// Lanes read 16 bytes of a row of K or V at a time. Four lanes read the columns of K that two matrix instructions take,
// or four instructions with 8-bit elements. Eight lanes read the columns of V that make the rows of four instructions,
// or of eight. Columns beyond the head dim count as zero, or are not written.
constexpr int lane_columns(const KernelConfig& c) { return 16 / cache_bytes(c); }
constexpr int key_products(const KernelConfig& c) { return lane_columns(c) / 4; }
constexpr int value_products(const KernelConfig& c) { return lane_columns(c) / 2; }
constexpr int key_columns(const KernelConfig& c) { return 4 * lane_columns(c); }
constexpr int value_columns(const KernelConfig& c) { return 8 * lane_columns(c); }
constexpr int key_pieces(const KernelConfig& c) { return (c.head_dim_qk + key_columns(c) - 1) / key_columns(c); }
constexpr int value_pieces(const KernelConfig& c) { return (c.head_dim_v + value_columns(c) - 1) / value_columns(c); }

// The elements that are multiplied. Halves hold every number of 8 bits. A row of Q is scaled so that its largest
// element is near the largest half, and then loses nothing that counts.
constexpr Element product_element(const KernelConfig& c) { return is_scaled(c) ? Element::f16 : c.element; }

// An accumulator of the second product holds eight rows of a tile.
constexpr int kOctet = 8;
constexpr int octets(const KernelConfig& c) { return c.tile_q / kOctet; }
// An accumulator of the first product holds two times eight rows.
constexpr int row_pairs(const KernelConfig& c) { return (octets(c) + 1) / 2; }

// True if a tile has more rows than a warp has registers for beside O. Then Q is read from shared memory for each tile,
// and parts of the result lie in the rings, because there is no room beside them.
constexpr int most_dim_of_pair(bool scaled) {
  return scaled ? 128 : 160;  // With larger head dims, kernels of some target spill [M65].
}
constexpr bool has_many_rows(const KernelConfig& c) {
  return row_pairs(c) > 1 || (octets(c) > 1 && c.head_dim_qk > most_dim_of_pair(is_scaled(c)));
}

// Returns how many neighbouring heads are read at the same time by neighbouring blocks. The rows of these heads lie
// side by side for each token.
constexpr int heads_side_by_side(const KernelConfig& c) {
  for (int heads = c.decode.side_by_side; heads > 1; heads /= 2) {
    if (c.heads_kv % heads == 0) return heads;
  }
  return 1;
}

// Blocks that go through the same keys at the same time, each for a head and a row tile: what they read again comes
// from L2.
constexpr int sides(const KernelConfig& c) { return heads_side_by_side(c) * c.decode.row_tiles; }

// The number of lanes that copy a row of a tile, 16 bytes each: a power of two, and large enough that no more rows than a
// tile has are copied at once.
constexpr int lanes_of_row(const KernelConfig& c, int head_dim) {
  int lanes = c.tile_kv < 32 ? 32 / c.tile_kv : 1;
  while (lanes * lane_columns(c) < head_dim) lanes *= 2;
  return lanes;
}

// With one stage tiles go straight to registers; with more, each warp has a ring of its own in shared memory.
constexpr bool has_ring(const KernelConfig& c) { return c.stages > 1; }

// The number of floats that a warp, or a block, passes on for a row besides its part of O: reference, sum, largest
// score, and a zero.
constexpr int kRowState = 4;

// The size of a part of a tile's result, in floats: O comes first, then what belongs to its rows.
constexpr int part_floats(const KernelConfig& c) { return c.tile_q * (c.head_dim_v + kRowState); }
// A block begins with a tile that others have begun, and ends with one that others continue.
constexpr int kPartsPerBlock = 2;

constexpr int larger(int a, int b) { return a > b ? a : b; }

// Tells how the keys of a call are cut into ranges where parts have many rows: into how many ranges, and how many steps
// without keys lead into each row tile.
struct RangeCut {
  int count, lead;
};
constexpr int kRowsOfLargePart = 64;
// Ending such a row tile and beginning the next one takes as long as this number of steps. The cut counts these steps
// too, so ranges in which tiles end have fewer keys.
constexpr int kMostLead = 4;
// Warpgroups take tiles by turns, so two steps take no longer than one. In longer calls a range of four takes less time
// than twice the parts would.
constexpr int least_of_range(int steps) { return steps < 96 ? 2 : 4; }
// Returns the number of ranges that are whole row tiles, or equal pieces of one, or 0. Such ranges are taken if all
// sequences are as long as the first one, and if they are little longer than `count` equal ranges: tiles that no two
// ranges share need no parts.
constexpr int whole_pieces(int of_tile, int steps, int count) {
  if (of_tile == 0) return 0;
  const int least = (steps + count - 1) / count, pieces = larger(of_tile / least, 1);
  const int piece = least > of_tile ? (least + of_tile - 1) / of_tile * of_tile : (of_tile + pieces - 1) / pieces;
  const bool fits = steps % piece == 0 && (piece % of_tile == 0 || of_tile % piece == 0);
  return fits && piece * 15 <= least * 16 ? steps / piece : 0;
}
// Cuts the steps of a call. `of_tile` counts the steps of the first row tile, and `steps` those of the whole call. Each
// range has keys.
constexpr RangeCut cut_of_large_parts(int of_tile, int steps, int most) {
  const int fewer = larger(steps / least_of_range(steps), 1), count = fewer < most ? fewer : most;
  const int pieces = whole_pieces(of_tile, steps, count), lead = larger(steps / count - 1, 0);
  return pieces > 0 ? RangeCut{pieces, 0} : RangeCut{count, lead < kMostLead ? lead : kMostLead};
}

constexpr int bit_length(int n) {
  int bits = 0;
  for (int step = 16; step > 0; step /= 2) {
    if (n >> step > 0) n >>= step, bits += step;
  }
  return bits + n;
}

// With fixed parts: the number of keys of a part, as a power of two, where so many keys are seen. It is the largest of
// three: what the warps of a block read at once, or what takes longer than storing a part of many rows; an eighth, up
// to 1024, so that each block of a team has a part; and about four times the square root, which cuts long sequences
// into more and longer parts than short ones.
constexpr int kLeastPart = 128, kLeastLargePart = 512, kFewPartsShift = 3, kLongPartShift = 10;
constexpr int least_part_shift(const KernelConfig& c) {
  const int least = c.tile_q >= kRowsOfLargePart ? kLeastLargePart : kLeastPart;
  return bit_length(larger(least, c.decode.warps * c.tile_kv) - 1);
}
constexpr int part_shift_of_log(const KernelConfig& c, int log) {
  const int few = log - kFewPartsShift;
  return larger(least_part_shift(c), larger((log + 5) / 2, few < kLongPartShift ? few : kLongPartShift));
}
constexpr int part_shift(const KernelConfig& c, int keys) {
  return part_shift_of_log(c, bit_length(larger(keys, 1) - 1));
}
// The most parts of a row tile that sees up to `keys` keys. Fewer keys may have more parts, just before parts become
// longer.
constexpr int most_parts(const KernelConfig& c, int keys) {
  const int shift = part_shift(c, round_up(keys, c.tile_kv));
  const int now = (round_up(keys, c.tile_kv) + (1 << shift) - 1) >> shift;
  const int before = shift > kLongPartShift ? 1 << shift >> 5 : 1 << kFewPartsShift;
  return shift > least_part_shift(c) ? larger(now, before) : now;
}

// Blocks of a team that share a row tile each add up some columns: groups of four neighbouring quads, of four columns
// each, dealt out by turns. A quad is pushed to the block that adds it up, with the state of its row: 32 bytes.
constexpr int kGroupedQuads = 4, kQuadBytes = 32;
constexpr int team_bytes(const KernelConfig& c) {
  return c.decode.team > 1 ? (c.tile_q * (c.head_dim_v / 4) + kGroupedQuads * c.decode.team) * kQuadBytes : 0;
}

// Rows of Q on their way to a team lie an odd number of 16 bytes apart, so that reads meet no bank twice. Lanes may
// read behind the last row.
constexpr int team_query_pitch(const KernelConfig& c) { return (c.head_dim_qk / 8 | 1) * 16; }
constexpr int team_query_bytes(const KernelConfig& c) {
  return c.decode.team > 1 ? c.tile_q * team_query_pitch(c) + 2 * key_columns(c) : 0;
}

// Q as the operands that lanes read, with 16 bytes of all lanes after another, and then the factors that restore the
// rows.
constexpr int query_operand_bytes(const KernelConfig& c) {
  return octets(c) * (key_pieces(c) * key_products(c) / 2 * 32 * 16 + kOctet * 4);
}

// Shared memory: [ rings of the warps | their parts of a tile | barriers of the rings | scratch ]. Tiles in rings lie
// in panels as TMA writes them. Teams put parts into the rings, whose tiles have been read by then, so what other
// blocks push takes the memory of parts, or some behind it. Rows of Q follow.
struct DecodeLayout {
  PanelLayout k, v;
  int stage_bytes = 0, ring_bytes = 0;
  int part_offset = 0, barrier_offset = 0, scratch_offset = 0;
  int team_part_offset = 0, team_part_step = 0, team_offset = 0, query_offset = 0;
  int bytes = 0;
};

constexpr int kScratchInts = 32 + 4;  // They are the sums of warps, and a cursor.

constexpr DecodeLayout decode_layout(const KernelConfig& c) {
  DecodeLayout s;
  s.k = panel_layout(c.tile_kv, c.head_dim_qk, cache_bytes(c));
  s.v = panel_layout(c.tile_kv, c.head_dim_v, cache_bytes(c));
  s.stage_bytes = s.k.bytes() + s.v.bytes();
  s.ring_bytes = has_ring(c) ? c.stages * s.stage_bytes : 0;
  const int part_bytes = part_floats(c) * 4;
  if (has_many_rows(c)) s.ring_bytes = larger(s.ring_bytes, round_up(part_bytes, 1024));
  const int parts_bytes = has_many_rows(c) ? 0 : c.decode.warps * part_bytes;
  const bool in_rings = s.ring_bytes >= part_bytes;
  s.part_offset = c.decode.warps * s.ring_bytes;
  s.team_part_offset = in_rings ? 0 : s.part_offset;
  s.team_part_step = in_rings ? s.ring_bytes : part_bytes;
  s.team_offset = s.part_offset + (in_rings ? 0 : parts_bytes);
  s.query_offset = s.team_offset + team_bytes(c);
  const int query_bytes = has_many_rows(c) ? query_operand_bytes(c) : team_query_bytes(c);
  s.barrier_offset = round_up(larger(s.part_offset + parts_bytes, s.query_offset + query_bytes), 16);
  s.scratch_offset = s.barrier_offset + (has_ring(c) ? c.decode.warps * c.stages * 8 : 0);
  s.bytes = s.scratch_offset + kScratchInts * 4;
  return s;
}

// ---- the second launch: threads are columns, four at a time, by parts of a row ----

// The block is small, so that it can wait in SMs beside the first launch, which leaves little room.
constexpr int kColumnLanes = 4, kCombineThreads = 128;
// The bytes by which the first launch of mla tells the second one about a tile.
constexpr int kSplitTileBytes = 80;
// The blocks of the second launch for each SM. They fit into SMs before the first launch ends, and are enough to read
// the parts of a short call in one pass.
constexpr int kCombineBlocks = 4;
constexpr int kCombineBytes = kScratchInts * 4;

}  // namespace flashjit
