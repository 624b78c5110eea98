// Sizes of the index families that follow from a KernelConfig. Shared by host and device.
#pragma once

#include "templates/tile_layouts.h"

namespace flashjit {

// ---- any GPU: tiles of so many queries of a head and as many keys, four warps of 16 rows each ----

constexpr int kIndexTile = 64, kIndexThreads = 128;
constexpr int index_smem(const KernelConfig& c) {
  return 2 * tile_layout(kIndexTile, padded_dim_qk(c), c.element).bytes();
}

// ---- sm_90a, elements of 8 bits: keys are the rows of a product, and queries with all of their heads the columns ----

constexpr int kHopperIndexDim = 128;                         // one panel
constexpr int kHopperIndexKeys = 128, kKeysOfConsumer = 64;  // of a tile, and of each of two warpgroups
constexpr int kIndexConsumers = kHopperIndexKeys / kKeysOfConsumer;
constexpr int kHopperIndexThreads = threads_of_warpgroups(kIndexConsumers);
constexpr int kMostIndexColumns = 256, kMostIndexQueries = 8;  // of a tile: more queries would take too many registers

// TMA copies a tile in boxes of so many keys, which lie in one page.
constexpr int keys_of_index_box(const KernelConfig& c) { return rows_in_a_page(kHopperIndexKeys, c.page_size); }

// The columns of a query: a thread has two of every eight, which must be those of one query.
constexpr int columns_of_query(const KernelConfig& c) { return round_up(group_size(c), 8); }
constexpr int index_columns(const KernelConfig& c) { return c.tile_q * columns_of_query(c); }

// Where columns are many they are two products: a warpgroup adds up one while the other one is made.
constexpr int index_halves(const KernelConfig& c) { return c.tile_q % 2 == 0 && index_columns(c) >= 128 ? 2 : 1; }

// Where columns are few, threads need few registers, and two blocks read ahead of each other.
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
  // Rows of a swizzle come eight at a time.
  s.k_offset = round_up(index_columns(c) * kHopperIndexDim, 8 * kPanelWidth);
  s.scale_offset = s.k_offset + c.stages * kHopperIndexSlotBytes;
  s.barrier_offset = s.scale_offset + c.stages * kHopperIndexKeys * 4;
  s.bytes = s.barrier_offset + c.stages * 2 * 8;
  return s;
}

// ---- both: the largest scores of a row ----

constexpr int kLargestThreads = 1024;
// Scores lie in the workspace in rows of so many.
constexpr long long scored_row(int k_len) { return round_up(k_len, 4); }

}  // namespace flashjit
