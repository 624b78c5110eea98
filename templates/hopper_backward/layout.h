// Sizes of the hopper backward family that follow from a KernelConfig. Shared by host and device.
#pragma once

#include "templates/hopper/layout.h"

namespace flashjit {

// A block has a tile of keys and goes over tiles of queries: tile_kv is 64 rows for each warpgroup, tile_q what a step
// takes.

// What a warpgroup computes of dQ in a step: 64 queries by these columns. With 64 queries in a tile warpgroups share
// the columns, with more they share the queries.
constexpr bool splits_dq_columns(const KernelConfig& c) { return c.tile_q == kRowsPerWarpgroup; }
constexpr int dq_columns(const KernelConfig& c) {
  return splits_dq_columns(c) ? panel_layout(0, c.head_dim_qk, c.element).columns / c.warpgroups : c.head_dim_qk;
}

// ---- workspace ----

// Of each query tile of each head, in the order of tiles, heads, batch indices: dQ, summed in fp32 in the order in which
// warpgroups hold it, ...
constexpr int dq_sum_floats(const KernelConfig& c) { return c.warpgroups * kRowsPerWarpgroup * dq_columns(c); }
// ... and what scores and dP are relative to, -LSE / scale and -D, as rows of 16 bytes: three numbers of 16 bits that
// add up to it, and zeros. First all rows of the one, then all of the other.
constexpr int kTermBytes = 16;
constexpr int row_terms_bytes(const KernelConfig& c) { return 2 * c.tile_q * kTermBytes; }

constexpr int kPrepareThreads = 256, kFinishThreads = 256;

// ---- shared memory of the main loop ----
//
// [ K | V | Q stages | dO stages | row terms, stages | dS, two | barriers ], tiles on 1024 bytes.

constexpr int kDsStages = 2;

constexpr int backward_producer_registers(const KernelConfig&) { return 24; }
constexpr int backward_consumer_registers(const KernelConfig&) { return 240; }

struct BackwardLayout {
  PanelLayout q, k, v, d_o, ds;
  int v_offset = 0, q_offset = 0, d_o_offset = 0, terms_offset = 0, ds_offset = 0, barrier_offset = 0;
  int barriers = 0;
  int bytes = 0;
};

constexpr BackwardLayout backward_layout(const KernelConfig& c) {
  BackwardLayout s;
  s.q = panel_layout(c.tile_q, c.head_dim_qk, c.element);
  s.k = panel_layout(c.tile_kv, c.head_dim_qk, c.element);
  s.v = panel_layout(c.tile_kv, c.head_dim_v, c.element);
  s.d_o = panel_layout(c.tile_q, c.head_dim_v, c.element);
  s.ds = panel_layout(c.tile_q, c.tile_kv, c.element);
  s.v_offset = s.k.bytes();
  s.q_offset = s.v_offset + s.v.bytes();
  s.d_o_offset = s.q_offset + c.stages * s.q.bytes();
  s.terms_offset = s.d_o_offset + c.stages * s.d_o.bytes();
  s.ds_offset = s.terms_offset + c.stages * row_terms_bytes(c);
  s.barrier_offset = s.ds_offset + kDsStages * s.ds.bytes();
  s.barriers = 2 + 2 * c.stages + 2 * kDsStages;
  s.bytes = s.barrier_offset + s.barriers * 8;
  return s;
}

}  // namespace flashjit
