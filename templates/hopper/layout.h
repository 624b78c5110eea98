// Sizes that the hopper family derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

constexpr int hopper_threads(const KernelConfig& c) { return threads_of_warpgroups(c.hopper.warpgroups); }

// True if a launch before the loop widens K and V: they have 8 bits, and Q has 16.
constexpr bool widens(const KernelConfig& c) { return is_scaled(c) && !has_scaled_queries(c); }
// True if weights are the bits of their exponents (hopper/narrow.cuh). A column of ones beside V sums them up.
constexpr bool interpolates(const KernelConfig& c) {
  return c.linear_exp && c.element == Element::f8 && c.hopper.row_sum == RowSum::matrix;
}
// True if the scale of K is found for each tile of keys. The loop does so even where all tiles share one scale, if it
// has no register to hold the scale for an item, as with d=256. Elsewhere this would cost speed [M70].
constexpr bool has_tile_scales(const KernelConfig& c) { return has_key_scales(c) || (widens(c) && c.head_dim_v > 224); }

// The hardware adds up products of 8 bits with some 13 bits, and the sum so far is one of the terms. So P V of a tile
// starts from zero, and additions of fp32 bring it into O. With overlap, P V has registers of its own. Without overlap
// it is multiplied in pieces that take the registers of S and are as wide as S: ptxas serialises all products if pieces
// are narrower. The last piece has columns behind V, which nobody reads.
constexpr bool adds_tiles(const KernelConfig& c) { return c.element == Element::f8; }

// The columns of O += P V are those of V. With row_sum=matrix eight more columns hold the row sum. The row sum is a
// product by itself where products are made in pieces, where V has a scale in each tile, or where registers are too few
// for so many columns.
constexpr int kSumColumns = 8;
constexpr bool sums_apart(const KernelConfig& c) {
  return c.hopper.row_sum == RowSum::matrix && adds_tiles(c) &&
         (c.hopper.overlap == Overlap::none || has_tile_scales(c) || (c.head_dim_v > 112 && c.tile_kv > 96));
}
constexpr int output_columns(const KernelConfig& c) {
  return c.head_dim_v + (c.hopper.row_sum == RowSum::matrix && !sums_apart(c) ? kSumColumns : 0);
}

constexpr int product_columns(const KernelConfig& c) {
  return adds_tiles(c) && c.hopper.overlap == Overlap::none ? c.tile_kv : output_columns(c);
}
constexpr int product_pieces(const KernelConfig& c) {
  return (output_columns(c) + product_columns(c) - 1) / product_columns(c);
}

// TMA brings O to memory, a warp's 16 rows at a time. Before, O lies in shared memory: in Q's slot, if another slot is
// there for the next Q, ...
constexpr PanelLayout output_layout(const KernelConfig& c) { return panel_layout(c.tile_q, c.head_dim_v, c.output); }
constexpr bool sends_output(const KernelConfig& c) {
  return c.output != Element::f32 && (c.head_tiles != HeadTiles::grouped || 16 % group_size(c) == 0);
}
constexpr bool output_replaces_queries(const KernelConfig& c) {
  return sends_output(c) && c.hopper.q_stages == 2 &&
         output_layout(c).panels() <= panel_layout(0, c.head_dim_qk, c.element).panels();
}

// Products of 8 bits read V with its keys along rows. Either a launch before the loop leaves tiles of V in that order,
// or TMA copies V as it is given, and three of the four warps that do not compute transpose it in shared memory.
constexpr bool transposes_values(const KernelConfig& c) { return c.hopper.transpose == Transpose::loop; }
constexpr bool reads_transposed(const KernelConfig& c) { return c.hopper.transpose == Transpose::launch; }
constexpr int kTransposingWarps = 3;
// Copying takes long and transposing does not, so two slots of transposed V are enough. More are needed where ones
// beside V sum up the rows, whether weights are interpolated [M71] or exact [M72]. There a limit leaves room for O:
// three slots of 96 keys, and two of 128 [M73].
constexpr int value_stages(const KernelConfig& c) {
  int most = 3;
  if (c.hopper.row_sum != RowSum::matrix) most = 2;
  else if (output_replaces_queries(c)) most = c.stages;
  else if (sums_apart(c) && c.hopper.overlap == Overlap::qk_pv) most = 2;
  return transposes_values(c) && c.stages > most ? most : c.stages;
}

// The last piece of a product reads behind its slot of V. Behind the last slot it reads these bytes, which nobody
// writes, because smaller things follow there. (A warpgroup product that leaves the block's shared memory ends the
// kernel.)
constexpr int bytes_behind_values(const KernelConfig& c) {
  return reads_transposed(c) ? (product_pieces(c) * product_columns(c) - output_columns(c)) * kPanelWidth : 0;
}

// With keys=parts a block has some of the keys of a query tile. It stores its sums of O in floats, and then the
// reference, the sum and the largest score of each row. Another launch puts the parts together, some rows at a time.
constexpr int hopper_part_floats(const KernelConfig& c) { return c.tile_q * (c.head_dim_v + 3); }
constexpr int kCombiningThreads = 256, kCombinedRows = 8;

constexpr int kWideningThreads = 256;
// The launch that transposes V keeps a tile in shared memory twice: as the tile is given, and transposed.
constexpr int kTransposingThreads = 128;
constexpr int transposing_bytes(const KernelConfig& c) {
  return round_up(panel_layout(c.tile_kv, c.head_dim_v, c.element).bytes(), 1024) +
         panel_layout(c.head_dim_v, c.tile_kv, c.element).bytes();
}

// Two slots of transposed V with few keys lie side by side in one panel, whose rows are wide enough for both.
constexpr bool values_side_by_side(const KernelConfig& c) {
  return transposes_values(c) && value_stages(c) == 2 && 2 * c.tile_kv <= kPanelWidth;
}

// Blocks that share an SM. Lists of tiles for 64 queries let two small blocks run side by side: one computes softmax
// while the other, which visits other tiles, multiplies.
constexpr int hopper_blocks(const KernelConfig& c) {
  constexpr int kTileBytes = 104 * 1024, kDimsInRegisters = 192;
  const int keys = c.stages * c.tile_kv * (padded_dim_qk(c) + padded_dim_v(c)),
            queries = c.hopper.q_stages * c.tile_q * padded_dim_qk(c);
  const bool small = (keys + queries) * size_of(c.element) <= kTileBytes && (c.inputs_16 | c.inputs_32) == 0 &&
                     c.head_dim_v + c.tile_kv <= kDimsInRegisters;
  return c.hopper.warpgroups == 1 && c.list_heads > 0 && c.element != Element::f8 && small ? 2 : 1;
}

// Registers of a thread after setmaxnreg. Together, all threads' registers fill the SM, and ptxas allocates within
// these limits.
constexpr int producer_registers(const KernelConfig& c) {
  if (hopper_blocks(c) == 2) return 40;
  return c.hopper.warpgroups == 1 ? 56 : c.hopper.warpgroups == 2 ? 40 : 32;
}
constexpr int consumer_registers(const KernelConfig& c) {
  if (hopper_blocks(c) == 2) return 216;
  return c.hopper.warpgroups == 1 ? 248 : c.hopper.warpgroups == 2 ? 232 : 160;
}

// Scores of 8 bits read Q from registers where registers suffice, which saves a third of the reads of shared memory
// [M74]. kRegistersBesideQueries are kept for everything but O, P V, S, P and Q. Kernels spill where fewer are left, or
// where more has to be kept (d=48 in 192x128; softcap; scales of blocks; NVRTC 13.0).
constexpr int kMostDimsInRegisters = 96, kRegistersBesideQueries = 18, kRegistersOfAddedSums = 8;
constexpr bool queries_in_registers(const KernelConfig& c) {
  const int sums = c.tile_kv / 2 + output_columns(c) + (c.hopper.row_sum == RowSum::matrix ? 0 : kRegistersOfAddedSums),
            operands = (c.tile_kv + padded_dim_qk(c)) / 8;
  return c.element == Element::f8 && c.hopper.overlap == Overlap::qk_pv && c.head_dim_qk <= kMostDimsInRegisters &&
         !c.has_score && !c.max_logit && !has_tile_scales(c) &&
         sums + operands + kRegistersBesideQueries <= consumer_registers(c);
}

// Inputs of the score (tile_layouts.h) lie one panel below the other for each warpgroup, and follow each other in the
// order of the parameters.
constexpr int input_panels(const KernelConfig& c, int i) {
  return (c.tile_kv * input_bytes_per_key(c, i) + kPanelWidth - 1) / kPanelWidth;
}
// Panels begin where every swizzle does, on 1024 bytes.
constexpr int input_panel_bytes(const KernelConfig& c, int i) { return round_up(input_rows(c, i) * kPanelWidth, 1024); }
// Returns where the input of parameter i begins, or, for i = kMaxParams, where the last input ends.
constexpr int input_offset(const KernelConfig& c, int i) {
  int offset = 0;
  for (int j = 0; j < i; ++j) offset += is_input(c, j) ? input_panels(c, j) * input_panel_bytes(c, j) : 0;
  return offset;
}
constexpr int inputs_bytes(const KernelConfig& c) { return input_offset(c, kMaxParams); }
// Returns how many bytes the copies for one warpgroup bring.
constexpr int copied_input_bytes(const KernelConfig& c) {
  int bytes = 0;
  for (int i = 0; i < kMaxParams; ++i)
    bytes += is_input(c, i) ? input_panels(c, i) * input_rows(c, i) * kPanelWidth : 0;
  return bytes;
}
// The number of tiles whose P V products are summed before the sum is added to O. Several are faster where ones sum up
// the rows [M75], and the row sum then loses as many bits as the sum that it divides. The number is 1 where the score
// or the reference needs each product in O before the next tile is exponentiated, and where tiles of V have different
// scales.
constexpr int tiles_of_sum(const KernelConfig& c) {
  const bool later = c.hopper.overlap == Overlap::qk_pv && c.reference == Reference::first && !c.score_has_tanh &&
                     inputs_bytes(c) == 0;
  return adds_tiles(c) && c.hopper.row_sum == RowSum::matrix && later && !has_tile_scales(c) ? 4 : 1;
}
// True if the producer copies K and V by maps that end where a sequence does, as the maps of packed tensors do. With
// lengths or pages a sequence ends before its tensor does.
constexpr bool ends_keys(const KernelConfig& c) {
  return !widens(c) && (c.page_size > 0 || (c.k_lens && c.sequences == Sequences::dense));
}
// True if the producer looks up in which page keys lie. A launch before the loop has done so where K and V are widened.
constexpr bool finds_pages(const KernelConfig& c) { return c.page_size > 0 && !widens(c); }
// True if prompts and single tokens stand in one call: queries are packed, and keys lie in pages. Numbering the tiles
// of each sequence up to the longest one would give mostly empty tiles, so the tiles of all sequences are numbered one
// after the other.
constexpr bool mixes_lengths(const KernelConfig& c) { return c.page_size > 0 && c.sequences == Sequences::packed; }

// A tile of keys in pages is copied in boxes, and no box lies in two pages: tiles and pages begin at multiples of
// box_rows(). The swizzle repeats after kSwizzledRows, so a page is a multiple of kSwizzledRows.
constexpr int kSwizzledRows = 8;
constexpr int box_rows(const KernelConfig& c) {
  return finds_pages(c) ? rows_in_a_page(c.tile_kv, c.page_size) : c.tile_kv;
}

// Shared memory: [ Q stages | K stages | V stages | copied V, where the loop transposes V | inputs of each warpgroup |
// O, if it has memory of its own | ones, if they are apart | work states | redo list | key of dropout | barriers |
// scales of tiles | numbers of the warps that do not compute ]. Tiles begin on 1024 bytes, where every swizzle repeats.
// With row_sum=matrix a panel of ones follows each stage of V.
constexpr int kWorkStateBytes = 192;
// Three items can be in work at once with two slots for Q: two whose Q is copied or waits, and one whose tiles are
// visited. One state more is needed because a state is read until O is written, and by then Q of the next item may have
// been released.
constexpr int kWorkSlots = 4;
// A block repeats failed items, whose references did not hold, each time it has done this number of items.
constexpr int kRedoSlots = 64;
// A repeated item must not add to O and LSE twice, so each warp remembers the items of which it has stored nothing.
constexpr bool remembers_failures(const KernelConfig& c) { return c.accumulate && c.reference != Reference::tile; }

// The scales of a tile's K and V, where keys have scales in blocks. The producer finds them when it copies K. V is read
// one tile after K, when the slot of K may have been filled again, so there are twice as many scales as slots.
struct TileScales {
  float k, v;
};
constexpr int scale_slots(const KernelConfig& c) { return has_tile_scales(c) ? 2 * c.stages : 0; }

// The producer keeps this many numbers of 4 bytes from one item to the next where keys lie in pages.
constexpr int kProgressNumbers = 4;

struct HopperLayout {
  // `v` is V as products read it, `copied_v` as TMA brings it: most often they are the same.
  PanelLayout q, k, v, copied_v;
  int v_stage_bytes = 0, copied_v_stage_bytes = 0;
  int k_offset = 0, v_offset = 0, copied_v_offset = 0, inputs_offset = 0, output_offset = 0, ones_offset = 0,
      state_offset = 0, redo_offset = 0, dropout_offset = 0, barrier_offset = 0, scales_offset = 0, numbers_offset = 0,
      failed_offset = 0;
  int barriers = 0;
  int bytes = 0;
};

constexpr HopperLayout hopper_layout(const KernelConfig& c, int output_bytes) {
  HopperLayout s;
  s.q = panel_layout(c.tile_q, c.head_dim_qk, c.element);
  s.k = panel_layout(c.tile_kv, c.head_dim_qk, c.element);
  s.copied_v = panel_layout(c.tile_kv, c.head_dim_v, c.element);
  s.v = c.hopper.transpose != Transpose::none ? panel_layout(output_columns(c), c.tile_kv, c.element) : s.copied_v;
  if (reads_transposed(c)) s.copied_v = s.v;
  const int q_bytes = round_up(s.q.bytes(), 1024), k_bytes = round_up(s.k.bytes(), 1024);
  const bool panel_of_ones = c.hopper.row_sum == RowSum::matrix && c.hopper.transpose == Transpose::none;
  const int side_by_side = values_side_by_side(c) ? 2 : 1;
  s.v_stage_bytes = round_up(s.v.bytes() + (panel_of_ones ? s.v.panel_bytes() : 0), 1024 * side_by_side) / side_by_side;
  s.copied_v_stage_bytes = transposes_values(c) ? round_up(s.copied_v.bytes(), 1024) : s.v_stage_bytes;
  s.k_offset = c.hopper.q_stages * q_bytes;
  s.v_offset = s.k_offset + c.stages * k_bytes;
  s.copied_v_offset = s.v_offset + (transposes_values(c) ? value_stages(c) * s.v_stage_bytes : 0);
  s.inputs_offset = s.copied_v_offset + c.stages * s.copied_v_stage_bytes + bytes_behind_values(c);
  s.output_offset = s.inputs_offset + c.hopper.warpgroups * inputs_bytes(c);
  s.ones_offset = s.output_offset + output_bytes;
  s.state_offset = s.ones_offset + (sums_apart(c) ? kSumColumns * kPanelWidth : 0);
  s.redo_offset = s.state_offset + kWorkSlots * kWorkStateBytes;
  s.dropout_offset = s.redo_offset + kRedoSlots * 4;
  s.barrier_offset = s.dropout_offset + dropout_key_bytes(c);
  s.barriers = 2 * c.hopper.q_stages + 4 * c.stages + 3 + (transposes_values(c) ? 2 * c.stages : 0) +
               (inputs_bytes(c) > 0 ? 2 * c.hopper.warpgroups : 0);
  s.scales_offset = s.barrier_offset + s.barriers * 8;
  s.numbers_offset = s.scales_offset + scale_slots(c) * sizeof(TileScales);
  const int of_stages = (transposes_values(c) ? 1 : 0) + (c.list_heads > 0 ? 1 : 0);
  s.failed_offset = s.numbers_offset + (finds_pages(c) ? kProgressNumbers * 4 : 0) + of_stages * c.stages * 4;
  s.bytes = s.failed_offset + (remembers_failures(c) ? c.hopper.warpgroups * 4 * kRedoSlots / 8 : 0);
  return s;
}

// ... or in memory of its own, if Q of 8 bits is too small for it and memory is left.
constexpr int kSharedOfBlock = 227 * 1024;
constexpr bool output_has_memory(const KernelConfig& c) {
  return sends_output(c) && c.element == Element::f8 && !output_replaces_queries(c) &&
         hopper_layout(c, output_layout(c).bytes()).bytes <= kSharedOfBlock;
}
constexpr bool stages_output(const KernelConfig& c) { return output_replaces_queries(c) || output_has_memory(c); }
constexpr HopperLayout hopper_layout(const KernelConfig& c) {
  return hopper_layout(c, output_has_memory(c) ? output_layout(c).bytes() : 0);
}

// The bytes that a launch before the loop leaves for a tile of keys: K, if K is widened, and V.
constexpr int made_keys_bytes(const KernelConfig& c) { return widens(c) ? hopper_layout(c).k.bytes() : 0; }
constexpr int made_tile_bytes(const KernelConfig& c) { return made_keys_bytes(c) + hopper_layout(c).v.bytes(); }

// The boxes of a tile of K or V in pages, and the threads that copy them, at most one box each. One warp copies a tile
// of few boxes: help of the other warps would cost more than it brings [M76].
constexpr int boxes_of_tile(const KernelConfig& c) {
  const HopperLayout s = hopper_layout(c);
  return c.tile_kv / box_rows(c) * (s.k.panels() > s.v.panels() ? s.k.panels() : s.v.panels());
}
constexpr int copying_threads(const KernelConfig& c) {
  if (!finds_pages(c)) return 1;
  return boxes_of_tile(c) <= 4 || transposes_values(c) ? 32 : kThreadsPerWarpgroup;
}

}  // namespace flashjit
