// Formats of a cache of latents, as engines keep those of DeepSeek: the first columns of a row have 8 bits (e4m3) and
// scales, and the others are bf16. V is the first columns of K. Code that reads or writes such rows takes this table.
// Host and device share it.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

// A number is fp32, and an exponent is a byte e that stands for 2^(e - 127).
enum class LatentScale : unsigned char { number, exponent };

// A token takes `row_bytes`. Its columns, without the scales, are its data.
struct LatentRows {
  int head_dim_qk, head_dim_v;
  int row_bytes;
  int narrow_columns;    // The columns of 8 bits, at the begin of the data.
  int wide_columns;      // All other columns, which are bf16 and have no scale.
  int wide_at;           // The begin of the wide columns, in bytes behind the data's begin.
  int columns_of_scale;  // The number of neighbours that share a scale.
  LatentScale scale;
  // Either a row contains its scales, `scales_at` behind its begin, and rows lie as the strides of K say. Or the scales
  // of a page lie behind the data of all its tokens, at `page size * data_bytes`, and a page is contiguous.
  bool scales_behind_page;
  int data_bytes;   // The step from one token's data to the next one's, where scales lie behind the page.
  int scale_bytes;  // The step from one token's scales to the next one's there; otherwise the scales of a row.
  int scales_at;
};

// The last of eight bytes of scales of latent584 is padding, and this format exists only in pages. (NVRTC reads C++17,
// which names no fields here.)
constexpr LatentRows latent_rows(CacheFormat format) {
  constexpr LatentRows kLatent656 = {576, 512, 656, 512, 64, 528, 128, LatentScale::number, false, 656, 16, 512};
  constexpr LatentRows kLatent584 = {512, 512, 584, 448, 64, 448, 64, LatentScale::exponent, true, 576, 8, 0};
  return format == CacheFormat::latent584 ? kLatent584 : kLatent656;
}

// Returns the bits of the fp32 number that an exponent stands for; 255 stands for no number, and gives NaN.
constexpr unsigned latent_scale_bits(unsigned char exponent) {
  return exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : static_cast<unsigned>(exponent) << 23;
}

constexpr int scales_of_row(const LatentRows& rows) { return rows.narrow_columns / rows.columns_of_scale; }

// Return where the data and the scales of a token lie, in bytes from the begin of its page, or of its sequence where
// there are no pages. `stride` is that of tokens of K.
constexpr long long latent_data_at(const LatentRows& rows, long long stride, int token) {
  return token * (rows.scales_behind_page ? rows.data_bytes : stride);
}
constexpr long long latent_scales_at(const LatentRows& rows, long long stride, int token, int page_size) {
  if (!rows.scales_behind_page) return token * stride + rows.scales_at;
  return static_cast<long long>(page_size) * rows.data_bytes + static_cast<long long>(token) * rows.scale_bytes;
}

// The threads of a block, and its rows, of the launch that widens rows where loops read 16 bits.
constexpr int kWideRowsThreads = 128, kWideRows = 16;

constexpr bool has_latent_rows(const KernelConfig& c) { return c.cache_format != CacheFormat::elements; }

}  // namespace flashjit
