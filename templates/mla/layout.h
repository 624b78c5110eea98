// Sizes that the mla family derives from a KernelConfig. Host and device share them.
#pragma once

#include "templates/decode/layout.h"
#include "templates/latents/rows.h"
#include "templates/tile_layouts.h"

namespace flashjit {

// A block has 64 rows of a tile, and two warpgroups that compute and share O: each has all rows of half the columns.
// Three more warps have tasks: one copies K, one copies Q, and one prefetches K to L2. Where threads gather K, four
// warps do, and one of them copies Q.
constexpr int kMlaRows = 64, kMlaKeys = 64, kMlaConsumers = 2, kMlaStages = 2;
constexpr int kMlaThreads = (kMlaConsumers + 1) * 128;

// Q and K of 8 bits are multiplied as they are. Otherwise threads gather K where TMA cannot bring it in the form that
// products want: rows that queries have chosen lie anywhere, and elements of 8 bits have to be widened.
constexpr bool multiplies_narrow(const KernelConfig& c) { return c.element == Element::f8; }
constexpr bool gathers_keys(const KernelConfig& c) {
  return (is_scaled(c) && !multiplies_narrow(c)) || has_latent_rows(c) || c.selected > 0;
}
constexpr int kMlaGatherers = 4;  // Their number in warps.
// The most bytes of K: 32 bits give the place of a row, in pieces of 16 bytes.
constexpr long long kGatherReach = 16ll << 32;
// Warps know for this number of tiles which keys exist: two tiles in slots, and two ahead.
constexpr int kSeenTiles = 4;
constexpr int half_columns(const KernelConfig& c) { return c.head_dim_v / kMlaConsumers; }

// A tile arrives in pieces, two for each half of V. The columns behind V come with the last piece.
constexpr int kMlaPieces = 2 * kMlaConsumers;
constexpr int columns_behind(const KernelConfig& c) { return c.head_dim_qk - c.head_dim_v; }
// A piece has whole panels of V.
constexpr int kLeastLatentV = kMlaPieces * 64;

// The rows of K that TMA copies at a time. Blocks of a cluster share the boxes of a tile.
constexpr int rows_of_block(const KernelConfig& c) { return kMlaKeys / c.decode.cluster; }
constexpr int keys_of_box(const KernelConfig& c) {
  int rows = rows_of_block(c);
  while (c.page_size > 0 && c.page_size % rows != 0) rows /= 2;
  return rows;
}

// A row of K as gathering threads see it, in panels of shared memory: the first panels have 8 bits in memory. Memory is
// read in pieces of 16 bytes.
struct GatheredRow {
  int narrow_panels, wide_panels;
  int pieces;   // The number of pieces of a row.
  int wide_at;  // The first piece of the wide panels.
  // The piece that has scales of columns, if these lie in the row.
  int scales_at;
  int panels_of_scale;  // The number of neighbouring panels that share such a scale.
};
constexpr GatheredRow gathered_row(const KernelConfig& c) {
  const int panels = c.head_dim_qk / 64;
  if (has_latent_rows(c)) {
    const LatentRows l = latent_rows(c.cache_format);
    const int bytes = l.scales_behind_page ? l.data_bytes : l.row_bytes;
    return {l.narrow_columns / 64, l.wide_columns / 64, bytes / 16,
            l.wide_at / 16,        l.scales_at / 16,    l.columns_of_scale / 64};
  }
  if (is_scaled(c)) return {panels, 0, panels * 4, 0, 0, 1};
  return {0, panels, panels * 8, 0, 0, 1};
}
// True if a thread holds pieces until it widens them. Panels of 16 bits are copied to their slot instead.
constexpr bool holds_rows(const KernelConfig& c) { return gathers_keys(c) && gathered_row(c).narrow_panels > 0; }
// Returns how many panels are held of a half of V; the last panel is held by itself.
constexpr int held_panels(const KernelConfig& c, int half) {
  const int panels = half_columns(c) / 64;
  return half == 0 ? panels : c.head_dim_qk / 64 - 1 - panels;
}
constexpr int kMostHeldPanels = 4;  // A thread has registers for this number of held panels.
constexpr bool copies_rows(const KernelConfig& c) { return gathers_keys(c) && !holds_rows(c); }
// Threads that gather hold pieces of rows that are being loaded. Warpgroups exchange the registers that a block begins
// with, 168 for each thread; a block that asked for more would wait for ever.
constexpr int mla_producer_registers(const KernelConfig& c) { return !gathers_keys(c) ? 56 : holds_rows(c) ? 88 : 72; }
constexpr int mla_consumer_registers(const KernelConfig& c) {
  return !gathers_keys(c) ? 224 : holds_rows(c) ? 208 : 216;
}

// Returns how many rows of Q TMA copies at a time: heads of one query.
constexpr int queries_of_box(const KernelConfig& c) {
  int rows = kMlaRows;
  while (group_size(c) % rows != 0) rows /= 2;
  return rows;
}

// Products of 8 bits read V with its keys along rows, so two warps transpose the values in what is copied of K.
// Products of V are made for kMlaProductColumns columns at a time, and additions of fp32 bring them into O
// (hopper/layout.h gives the reason).
// The transposing warps stand behind those that copy.
constexpr int kMlaTransposers = 2, kFirstTransposer = 2, kMlaProductColumns = 64;
constexpr int product_pieces_of_half(const KernelConfig& c) { return half_columns(c) / kMlaProductColumns; }

// Shared memory: [ Q | slots of K | slots of V^T, and P, where products are of 8 bits | barriers | progress | states of
// rows | seen | copied | scratch ], with tiles in panels. A slot of K has a panel behind V, in which P lies for the
// other warpgroup: the first panel of K behind V, which is free once the scores are there, or, where V is all of K, a
// panel that holds nothing else.
struct MlaLayout {
  // `v` is V^T of two tiles side by side.
  PanelLayout q, k, v;
  int k_offset = 0, slot_bytes = 0, v_offset = 0;
  int p_offset = 0, p_stride = 0;  // P lies in slots of K, or behind V^T.
  int barrier_offset = 0, progress_offset = 0, row_offset = 0, seen_offset = 0, copied_offset = 0, scratch_offset = 0;
  int bytes = 0;
};

// Each slot of K has barriers for its pieces (full) and for the halves of V (empty). Q has two: full and empty.
constexpr int kMlaBarriers = kMlaStages * (kMlaPieces + kMlaConsumers) + 2;
constexpr int kMlaValueBarriers = 2 * kMlaStages;  // Slots of V^T have these barriers.
// Each row has its reference, and from each warpgroup a factor for the other one, a sum and a largest score. Each warp
// of both warpgroups has a flag that tells whether its factors count.
constexpr int kMlaRowFloats = 1 + 3 * kMlaConsumers, kMlaWarps = 4;

// The warps that copy K, gather it, or prefetch it to L2 have a progress of their own. The other warps have the
// previous segment, this one and the next.
constexpr int kProgressBytes = 176, kMlaSegments = 3;
constexpr int mla_copies(const KernelConfig& c) {
  return gathers_keys(c) ? kMlaGatherers : multiplies_narrow(c) ? 1 + kMlaTransposers : 2;
}

constexpr MlaLayout mla_layout(const KernelConfig& c) {
  MlaLayout s;
  s.q = panel_layout(kMlaRows, c.head_dim_qk, c.element);
  s.k = panel_layout(kMlaKeys, c.head_dim_qk, c.element);
  s.k_offset = s.q.bytes();
  const int behind = c.head_dim_v / s.k.panel_columns() * s.k.panel_bytes();
  s.slot_bytes = larger(s.k.bytes(), behind + s.k.panel_bytes());
  s.p_offset = s.k_offset + behind;
  s.p_stride = s.slot_bytes;
  s.barrier_offset = s.v_offset = s.k_offset + kMlaStages * s.slot_bytes;
  if (multiplies_narrow(c)) {
    s.v = panel_layout(c.head_dim_v, kMlaStages * kMlaKeys, c.element);
    s.p_offset = s.v_offset + s.v.bytes();
    s.p_stride = panel_layout(kMlaRows, kMlaKeys, c.element).bytes();
    s.barrier_offset = s.p_offset + kMlaStages * s.p_stride;
  }
  s.progress_offset = s.barrier_offset + (kMlaBarriers + (multiplies_narrow(c) ? kMlaValueBarriers : 0)) * 8;
  s.row_offset = s.progress_offset + (mla_copies(c) + kMlaSegments) * kProgressBytes;
  s.seen_offset = s.row_offset + kMlaRows * kMlaRowFloats * 4 + kMlaConsumers * kMlaWarps * 4;
  s.copied_offset = s.seen_offset + (c.selected > 0 ? kSeenTiles * kMlaKeys / 8 : 0);
  s.scratch_offset = s.copied_offset + 4;
  s.bytes = s.scratch_offset + kScratchInts * 4;
  return s;
}

}  // namespace flashjit
