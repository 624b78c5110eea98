// The layouts of tiles in shared memory, for ldmatrix, and for TMA and WGMMA. Host and device share them.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

// A row-major tile in shared memory, in 16-byte chunks. The chunk index is XOR-ed with row bits, so that the eight rows
// that an ldmatrix reads lie in eight different bank groups. `group` is the largest power of two (at most 8) that
// divides the chunks of a row. Within a group the XOR stays inside the row, so every width works without padding.
constexpr int kChunkBytes = 16;

struct TileLayout {
  int rows = 0;
  int columns = 0;  // A multiple of the columns of a chunk.
  int element_bytes = 0;
  constexpr int chunk_columns() const { return kChunkBytes / element_bytes; }
  constexpr int chunks() const { return columns / chunk_columns(); }  // The chunks of a row.
  constexpr int row_bytes() const { return columns * element_bytes; }
  constexpr int bytes() const { return rows * row_bytes(); }
  constexpr unsigned group() const { return chunks() % 8 == 0 ? 8 : chunks() % 4 == 0 ? 4 : chunks() % 2 == 0 ? 2 : 1; }
  constexpr unsigned offset(unsigned row, unsigned chunk) const {
    return (row * chunks() + (chunk ^ (row / (8 / group()) & (group() - 1)))) * kChunkBytes;
  }
};
constexpr TileLayout tile_layout(int rows, int columns, Element element) { return {rows, columns, size_of(element)}; }

// A tile as TMA writes and WGMMA reads it: panels of 128 bytes a row, one below the other; within a panel the hardware
// XORs 16-byte chunks with row bits. TMA fills columns behind the head dim with zeros. Narrower panels would save their
// memory, but copying takes the time of its rows, so they are slower [M96].
constexpr int kPanelWidth = 128;  // The width in bytes.

struct PanelLayout {
  int rows = 0;
  int columns = 0;  // A multiple of the columns of a panel.
  int element_bytes = 0;
  constexpr int panel_columns() const { return kPanelWidth / element_bytes; }
  constexpr int panels() const { return columns / panel_columns(); }
  constexpr int panel_bytes() const { return rows * kPanelWidth; }
  constexpr int bytes() const { return panels() * panel_bytes(); }
};
constexpr PanelLayout panel_layout(int rows, int dims, int element_bytes) {
  return {rows, round_up(dims, kPanelWidth / element_bytes), element_bytes};
}
constexpr PanelLayout panel_layout(int rows, int dims, Element element) {
  return panel_layout(rows, dims, size_of(element));
}

// Returns the rows of a box of keys in pages: no box lies in two pages.
constexpr int rows_in_a_page(int tile, int page_size) {
  return page_size == 0 ? tile : rows_in_a_page(page_size, tile % page_size);
}

// The high word of the descriptor of an operand of a warpgroup product: 128-byte swizzle, and the step from eight rows
// to the next eight.
constexpr unsigned kDescriptorHigh = 1u << 30 | 8 * kPanelWidth / 16;

// The high word of the descriptor of an operand of rows of 16 bytes one below the other, without a swizzle.
constexpr unsigned kRowsDescriptorHigh = 8 * 16 / 16;

// Blocks with warpgroup products have warpgroups that compute, and one more that copies.
constexpr int kRowsPerWarpgroup = 64;
constexpr int kThreadsPerWarpgroup = 128;
constexpr int threads_of_warpgroups(int computing) { return (computing + 1) * kThreadsPerWarpgroup; }

// True if parameter i is a tensor that the score function reads at every key and that TMA brings beside K: for each
// warpgroup panels of 128 bytes by its 64 rows, or by one row that all queries share.
constexpr bool is_input(const KernelConfig& c, int i) { return (c.inputs_16 | c.inputs_32) >> i & 1; }
constexpr int input_rows(const KernelConfig& c, int i) { return c.inputs_q >> i & 1 ? kRowsPerWarpgroup : 1; }
constexpr int input_bytes_per_key(const KernelConfig& c, int i) { return c.inputs_16 >> i & 1 ? 2 : 4; }
// Returns the index of parameter i among the inputs.
constexpr int input_number(const KernelConfig& c, int i) {
  int number = 0;
  for (int j = 0; j < i; ++j) number += is_input(c, j);
  return number;
}

}  // namespace flashjit
