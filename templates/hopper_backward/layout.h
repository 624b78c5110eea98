// Sizes that the hopper backward family derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

// True if tiles of keys add to a query tile one after the other, the last tile first, so that every run gives the same
// bits.
constexpr bool adds_in_order(const KernelConfig& c) { return c.hopper_backward.dq == DqSums::ordered; }

constexpr int hopper_backward_threads(const KernelConfig& c) {
  return threads_of_warpgroups(c.hopper_backward.warpgroups);
}

// A block has a tile of keys and goes over tiles of queries. tile_kv is 64 keys for each warpgroup, and tile_q is the
// queries of a step.

// One warpgroup computes alone where blocks of a mask have 64 keys, because each tile of keys has its own list there.
// Two blocks share an SM, so that one exponentiates beside the products of the other.
constexpr bool computes_alone(const KernelConfig& c) { return c.hopper_backward.warpgroups == 1; }
constexpr int backward_blocks_of_sm(const KernelConfig& c) { return computes_alone(c) ? 2 : 1; }

// True if dK and dV do not fit into the registers of one warpgroup. Then one warpgroup has scores and dV, the other has
// dP and dK, and a block has 64 keys.
constexpr bool has_roles(const KernelConfig& c) { return c.head_dim_qk + c.head_dim_v > 256; }

// With roles and sums of dQ in memory, two blocks are a cluster, and tile_kv counts the keys of both. They send each
// other dS, and a third warpgroup makes half of the columns of dQ, from the keys of both blocks. This halves what goes
// to memory.
constexpr bool in_clusters(const KernelConfig& c) { return c.hopper_backward.cluster > 1; }
// Clusters begin in any order. Where a cluster waits for others, it takes the next tile of keys when it begins.
constexpr bool deals_to_clusters(const KernelConfig& c) { return in_clusters(c) && adds_in_order(c); }
constexpr int block_keys(const KernelConfig& c) { return c.tile_kv / c.hopper_backward.cluster; }

// Returns how many columns of dK or dV one product takes; the next product takes the rest. A cluster's block has so
// many threads that ptxas has 128 registers for an instruction.
constexpr int columns_at_once(const KernelConfig& c, int columns) {
  return in_clusters(c) && columns > 192 ? 128 : columns;
}

// True if dQ is added up in memory, false if a launch of its own makes it.
constexpr bool adds_dq(const KernelConfig& c) { return c.hopper_backward.dq != DqSums::launch; }

// A warpgroup computes 64 queries by dq_columns() columns of dQ in a step. With 64 queries in a tile, warpgroups or
// blocks of a cluster share the columns; with more, they share the queries.
constexpr bool splits_dq_columns(const KernelConfig& c) { return c.tile_q == kRowsPerWarpgroup; }
constexpr int dq_shares(const KernelConfig& c) {
  return in_clusters(c) ? c.hopper_backward.cluster : c.hopper_backward.warpgroups;
}
// Panels of 64 columns are not cut, so the last block of a cluster may have fewer columns.
constexpr int dq_columns(const KernelConfig& c) {
  if (!splits_dq_columns(c)) return c.head_dim_qk;
  const PanelLayout row = panel_layout(0, c.head_dim_qk, c.element);
  return in_clusters(c) ? (row.panels() + 1) / 2 * row.panel_columns() : row.columns / c.hopper_backward.warpgroups;
}

// True if P marks dropped weights in its sign, because registers are few (dropout.cuh).
constexpr bool signs_tell(const KernelConfig& c) { return c.dropped > 0 && c.tile_q > 64 && !c.has_score; }
// True if the loop writes zeros to gradients of parameters where it visits nothing. It can do so where a tile of keys
// belongs to one head, and query tiles follow each other.
constexpr bool zeroes_unvisited(const KernelConfig& c) {
  return !c.mask_has_holes && c.sequences == Sequences::dense && group_size(c) == 1;
}

// ---- workspace ----

// For each query tile of each head, in the order of tiles, heads, batch indices, the workspace has dQ, summed in fp32
// in the order in which warpgroups hold it, ...
constexpr int dq_sum_floats(const KernelConfig& c) { return dq_shares(c) * kRowsPerWarpgroup * dq_columns(c); }
// ... and row terms, to which scores and dP are relative: -LSE / scale and -D. A row term is a row of 16 bytes: three
// numbers of 16 bits that add up to the term, and zeros. All rows of -LSE / scale come first, then all of -D; clusters
// have less room, and keep both in the same rows. With dropout no product adds -D (dropout.cuh), and where a score
// function needs the products themselves none adds -LSE. Except in clusters each row has a float instead, at the same
// offset, with -LSE as an exponent of 2.
constexpr bool scores_apart(const KernelConfig& c) { return c.has_score && !c.score_adds; }
constexpr bool lse_is_float(const KernelConfig& c) { return scores_apart(c) && !in_clusters(c); }
constexpr int kTermBytes = 16;
constexpr int row_terms_bytes(const KernelConfig& c) { return (in_clusters(c) ? 1 : 2) * c.tile_q * kTermBytes; }
// Nobody writes to the room behind the row terms of a stage. A product names 32 bytes of each row, and their second
// half repeats the first half, but tools that look for races take it to be the following rows.
constexpr int row_terms_room(const KernelConfig& c) { return row_terms_bytes(c) + c.tile_q * kTermBytes; }

constexpr int kPrepareThreads = 256;
constexpr int finish_threads(const KernelConfig& c) { return dq_shares(c) * kThreadsPerWarpgroup; }
// They belong to the launch that sums up kept dS: the threads and the queries of a block.
constexpr int kKeptThreads = 256, kKeptRows = 64;

// Where tiles of keys are few, several items share the queries of a tile (KernelParams::parts) and add up dK and dV in
// memory, in the order in which their warps hold them. Three kinds of kernels do not cut items: sums in order would
// wait for each other, gradients of parameters have sums of their own for each tile of keys, and the warp that finds
// tiles of packed sequences has no registers left.
constexpr bool cuts_items(const KernelConfig& c) {
  return c.hopper_backward.dq == DqSums::atomics && c.gradients == 0 && c.sequences == Sequences::dense;
}
// The warps of such an item, and the floats that each adds: 16 keys of dK and dV, or with roles of one of them.
constexpr int cut_warps(const KernelConfig& c) { return c.tile_kv / 16 * (has_roles(c) ? 2 : 1); }
constexpr int cut_floats(const KernelConfig& c) {
  const int larger = c.head_dim_qk > c.head_dim_v ? c.head_dim_qk : c.head_dim_v;
  return 16 * (has_roles(c) ? larger : c.head_dim_qk + c.head_dim_v);
}

// ---- shared memory of the main loop ----
//
// [ K, slots | V | Q stages | dO stages | row terms, stages | exchanges | inputs of each warpgroup | barriers | two
// items | key of dropout ], with tiles on 1024 bytes. An exchange is what warps tell each other of a step: two slots of
// dS (one where a warpgroup computes alone), or with roles P in the order of its threads.

constexpr int kSharedMemoryOfBlock = 227 * 1024;
// An SM has 28 KB of L1 beside this much shared memory. With more, all of its memory becomes shared memory.
constexpr int kSharedMemoryBesideL1 = 195 * 1024;
// The system takes another KiB for each block.
constexpr int backward_shared_memory(const KernelConfig& c) {
  return (kSharedMemoryOfBlock + 1024) / backward_blocks_of_sm(c) - 1024;
}

// Elements that the score reads at every query and key of a step are copied as well, if TMA can address them: for each
// warpgroup the queries of the step by its 64 keys, in panels of 128 bytes a row, with panels and inputs one below the
// other.
constexpr bool has_inputs(const KernelConfig& c) { return (c.inputs_16 | c.inputs_32) != 0; }
constexpr int tile_input_bytes(const KernelConfig& c, int i) {
  return is_input(c, i) ? c.tile_q * kRowsPerWarpgroup * input_bytes_per_key(c, i) : 0;
}
// Returns where the input of parameter i begins, or, for i = kMaxParams, where the last input ends.
constexpr int tile_input_offset(const KernelConfig& c, int i) {
  return i == 0 ? 0 : tile_input_offset(c, i - 1) + tile_input_bytes(c, i - 1);
}
constexpr int tile_inputs_bytes(const KernelConfig& c) { return tile_input_offset(c, kMaxParams); }

constexpr int exchanges(const KernelConfig& c) { return has_roles(c) || computes_alone(c) ? 1 : 2; }

// Without roles a block takes one tile of keys after the other, and finds the next while it works on the last queries
// of the current one. If there is room, K of the next tile is copied at that time, too.
constexpr bool takes_items(const KernelConfig& c) { return !has_roles(c); }
constexpr int kItemBytes = 80, kItemSlots = 2;
// True if the loop counts, for each head, how many of its items are done. The last launch can then begin with the first
// heads as soon as SMs are free, while the last heads are still worked on.
constexpr bool counts_items(const KernelConfig& c) {
  return takes_items(c) && adds_dq(c) && c.sequences == Sequences::dense;
}

constexpr int backward_producer_registers(const KernelConfig&) { return 24; }
constexpr int backward_consumer_registers(const KernelConfig& c) {
  return in_clusters(c) ? 208 : computes_alone(c) ? 232 : 240;
}
constexpr int kDqRoleRegisters = 72;

struct HopperBackwardLayout {
  PanelLayout q, k, v, d_o, ds;
  int exchange_bytes = 0;
  int k_offset = 0, v_offset = 0, q_offset = 0, d_o_offset = 0, terms_offset = 0, exchange_offset = 0;
  int inputs_offset = 0;
  int barrier_offset = 0;
  int terms_step = 0;  // The step from one stage to the next.
  int d_o_stages = 0;
  int k_slots = 1, items_offset = 0;
  // If true, K of the next item takes the place of V, which is read for the last time before K is.
  bool swaps = false;
  // Only clusters have these.
  int other_k_offset = 0, ds_offset = 0, other_ds_offset = 0, numbers_offset = 0, dealt_offset = 0;
  int dropout_offset = 0;
  int barriers = 0;
  int bytes = 0;
};

// [ row terms | K | row terms | V | Q stages | dO stages | K of the other block in this block's columns of dQ | P |
//   two dS | two dS of the other block | barriers | two numbers of tiles | item dealt | key of dropout ].
// Memory behind row terms is written once, because a product names the rows that follow, see row_terms_room().
constexpr int kDsStages = 2;
constexpr void lay_out_in_cluster(HopperBackwardLayout& s, const KernelConfig& c) {
  s.k_offset = row_terms_bytes(c);
  s.terms_step = s.k_offset + s.k.bytes();
  s.v_offset = s.terms_step + row_terms_bytes(c);
  s.q_offset = s.v_offset + s.v.bytes();
  s.d_o_offset = s.q_offset + c.stages * s.q.bytes();
  s.other_k_offset = s.d_o_offset + s.d_o_stages * s.d_o.bytes();
  s.exchange_offset = s.other_k_offset + dq_columns(c) / s.k.panel_columns() * s.k.panel_bytes();
  s.ds_offset = s.exchange_offset + s.exchange_bytes;
  s.other_ds_offset = s.ds_offset + kDsStages * s.ds.bytes();
  s.barrier_offset = s.other_ds_offset + kDsStages * s.ds.bytes();
  s.barriers = 3 + 2 * c.stages + 2 * s.d_o_stages + (adds_in_order(c) ? 5 : 3) * kDsStages;
  s.numbers_offset = s.barrier_offset + s.barriers * 8;
  s.dealt_offset = s.numbers_offset + kDsStages * 4;
  s.dropout_offset = s.dealt_offset + (deals_to_clusters(c) ? 8 : 0);  // It lies on 8 bytes.
  s.bytes = s.dropout_offset + dropout_key_bytes(c);
}

constexpr void lay_out_outside_clusters(HopperBackwardLayout& s, const KernelConfig& c) {
  s.terms_step = row_terms_room(c);
  s.v_offset = s.swaps ? s.k.bytes() : s.k_slots * s.k.bytes();
  s.q_offset = s.v_offset + s.v.bytes();
  s.d_o_offset = s.q_offset + c.stages * s.q.bytes();
  s.terms_offset = s.d_o_offset + c.stages * s.d_o.bytes();
  s.exchange_offset = s.terms_offset + c.stages * row_terms_room(c);
  s.inputs_offset = s.exchange_offset + exchanges(c) * s.exchange_bytes;
  s.barrier_offset = s.inputs_offset + c.hopper_backward.warpgroups * tile_inputs_bytes(c);
  s.barriers = 1 + s.k_slots + 2 * c.stages + (has_roles(c) ? 0 : 2 * exchanges(c)) +
               (has_inputs(c) ? 2 * c.hopper_backward.warpgroups : 0) + (adds_in_order(c) ? exchanges(c) : 0) +
               (takes_items(c) ? s.k_slots + 2 * kItemSlots + 2 : 0);
  s.items_offset = round_up(s.barrier_offset + s.barriers * 8, 16);
  s.dropout_offset = s.items_offset + (takes_items(c) ? kItemSlots * kItemBytes : 0);
  s.bytes = s.dropout_offset + dropout_key_bytes(c);
}

constexpr HopperBackwardLayout hopper_backward_layout(const KernelConfig& c) {
  HopperBackwardLayout s;
  s.q = panel_layout(c.tile_q, c.head_dim_qk, c.element);
  s.k = panel_layout(block_keys(c), c.head_dim_qk, c.element);
  s.v = panel_layout(block_keys(c), c.head_dim_v, c.element);
  s.d_o = panel_layout(c.tile_q, c.head_dim_v, c.element);
  s.ds = panel_layout(c.tile_q, block_keys(c), c.element);
  s.exchange_bytes = has_roles(c) ? c.tile_q * block_keys(c) * 4 : adds_dq(c) ? s.ds.bytes() : 0;
  if (in_clusters(c)) {
    s.d_o_stages = c.stages;
    lay_out_in_cluster(s, c);
    if (s.bytes > kSharedMemoryOfBlock) {
      s.d_o_stages = 1;
      lay_out_in_cluster(s, c);
    }
    return s;
  }
  s.d_o_stages = c.stages;
  s.k_slots = takes_items(c) ? 2 : 1;
  lay_out_outside_clusters(s, c);
  if (takes_items(c) && s.bytes > kSharedMemoryBesideL1 / backward_blocks_of_sm(c)) {
    s.swaps = c.head_dim_qk == c.head_dim_v;
    s.k_slots = s.swaps ? 2 : 1;
    lay_out_outside_clusters(s, c);
  }
  return s;
}

// ---- the launch that makes dQ, where dQ has one of its own ----
//
// A block has 64 queries for each of two warpgroups, and goes over tiles of keys. Tiles have as many keys as registers
// and shared memory allow, and maps of their own: [ Q | dO | K stages | V stages | barriers | key of dropout ].

constexpr int kDqWarpgroups = 2, kDqStages = 2;
constexpr int kDqTileQ = kDqWarpgroups * kRowsPerWarpgroup;

struct DqLayout {
  int tile_kv = 0;
  PanelLayout q, k, v, d_o;
  int d_o_offset = 0, k_offset = 0, v_offset = 0, barrier_offset = 0, dropout_offset = 0;
  int bytes = 0;
};

constexpr DqLayout dq_layout(const KernelConfig& c, int tile_kv) {
  DqLayout s;
  s.tile_kv = tile_kv;
  s.q = panel_layout(kDqTileQ, c.head_dim_qk, c.element);
  s.d_o = panel_layout(kDqTileQ, c.head_dim_v, c.element);
  s.k = panel_layout(tile_kv, c.head_dim_qk, c.element);
  s.v = panel_layout(tile_kv, c.head_dim_v, c.element);
  s.d_o_offset = s.q.bytes();
  s.k_offset = s.d_o_offset + s.d_o.bytes();
  s.v_offset = s.k_offset + kDqStages * s.k.bytes();
  s.barrier_offset = s.v_offset + kDqStages * s.v.bytes();
  s.dropout_offset = s.barrier_offset + (1 + 4 * kDqStages) * 8;
  s.bytes = s.dropout_offset + dropout_key_bytes(c);
  return s;
}
constexpr DqLayout dq_layout(const KernelConfig& c) {
  int tile_kv = 128;
  while (dq_layout(c, tile_kv).bytes > kSharedMemoryOfBlock) tile_kv -= 16;
  return dq_layout(c, tile_kv);
}

}  // namespace flashjit
