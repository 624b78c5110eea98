// Sizes that the index families derive from a KernelConfig. Host and device share them.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

// ---- any GPU: tiles of 64 queries of a head and 64 keys, four warps of 16 rows each ----

constexpr int kIndexTile = 64, kIndexThreads = 128;
constexpr int index_smem(const KernelConfig& c) {
  return 2 * tile_layout(kIndexTile, padded_dim_qk(c), c.element).bytes();
}

// ---- sm_90a, elements of 8 bits: keys are the rows of a product, and queries with all of their heads the columns ----

constexpr int kHopperIndexDim = 128;  // A row of this length is one panel.
// Keys of a tile, and keys of each of two warpgroups.
constexpr int kHopperIndexKeys = 128, kKeysOfConsumer = 64;
constexpr int kIndexConsumers = kHopperIndexKeys / kKeysOfConsumer;
constexpr int kHopperIndexThreads = threads_of_warpgroups(kIndexConsumers);
// The most in a tile: more queries would take too many registers.
constexpr int kMostIndexColumns = 256, kMostIndexQueries = 8;

// Returns how many keys of one page TMA copies in a box.
constexpr int keys_of_index_box(const KernelConfig& c) { return rows_in_a_page(kHopperIndexKeys, c.page_size); }

// Returns the columns of a query: a thread has two of every eight, which must belong to one query.
constexpr int columns_of_query(const KernelConfig& c) { return round_up(group_size(c), 8); }
constexpr int index_columns(const KernelConfig& c) { return c.tile_q * columns_of_query(c); }

// Returns into how many products the columns are cut. Many columns are two products: a warpgroup adds up one while it
// makes the other.
constexpr int index_halves(const KernelConfig& c) { return c.tile_q % 2 == 0 && index_columns(c) >= 128 ? 2 : 1; }

// Few columns need few registers, so two blocks share an SM and read ahead of each other.
constexpr int index_blocks_per_sm(const KernelConfig& c) { return index_columns(c) <= 64 ? 2 : 1; }
// Otherwise warps that compute take registers from those that copy.
constexpr bool moves_registers(const KernelConfig& c) { return index_blocks_per_sm(c) == 1; }
constexpr int kIndexProducerRegisters = 40, kIndexConsumerRegisters = 232;

// Shared memory: [ Q | slots of K | scales of their keys | barriers ].
struct HopperIndexLayout {
  int k_offset = 0, scale_offset = 0, barrier_offset = 0, bytes = 0;
};
constexpr int kHopperIndexSlotBytes = kHopperIndexKeys * kHopperIndexDim;
constexpr HopperIndexLayout hopper_index_layout(const KernelConfig& c) {
  HopperIndexLayout s;
  // A swizzle repeats after eight rows.
  s.k_offset = round_up(index_columns(c) * kHopperIndexDim, 8 * kPanelWidth);
  s.scale_offset = s.k_offset + c.stages * kHopperIndexSlotBytes;
  s.barrier_offset = s.scale_offset + c.stages * kHopperIndexKeys * 4;
  s.bytes = s.barrier_offset + c.stages * 2 * 8;
  return s;
}

// ---- both families: the largest scores of a row ----

constexpr int kLargestThreads = 1024;
// Returns the length of a row of scores in the workspace.
constexpr long long scored_row(int k_len) { return round_up(k_len, 4); }

}  // namespace flashjit
