// Formats of a cache of latents, as engines keep those of DeepSeek: the first columns of a row have 8 bits (e4m3) and scales,
// the others are bf16. V is the first columns of K. Everything that reads or writes such rows asks this table. Shared by host
// and device.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

enum class LatentScale : unsigned char { number, exponent };  // fp32, or a byte e that stands for 2^(e - 127)

// A token takes `row_bytes`. Its columns, all but the scales, are its data.
struct LatentRows {
  int head_dim_qk, head_dim_v;
  int row_bytes;
  int narrow_columns;    // of 8 bits, at the begin of the data
  int wide_columns;      // bf16, all others: they have no scale
  int wide_at;           // where these begin, in bytes behind the data's begin
  int columns_of_scale;  // neighbours that share a scale
  LatentScale scale;
  // Either a row has its scales in itself, `scales_at` behind its begin, and rows lie as the strides of K say. Or the scales
  // of a page lie behind the data of all its tokens, at `page size * data_bytes`, and a page is contiguous.
  bool scales_behind_page;
  int data_bytes;   // from the data of a token of a page to those of the next one, where scales lie behind the page
  int scale_bytes;  // from the scales of a token to those of the next one, the same; else those of a row
  int scales_at;
};

// The last of eight bytes of scales of latent584 is padding. There is no layout of it but in pages. (NVRTC reads C++17, which
// names no fields here.)
constexpr LatentRows latent_rows(CacheFormat format) {
  constexpr LatentRows kLatent656 = {576, 512, 656, 512, 64, 528, 128, LatentScale::number, false, 656, 16, 512};
  constexpr LatentRows kLatent584 = {512, 512, 584, 448, 64, 448, 64, LatentScale::exponent, true, 576, 8, 0};
  return format == CacheFormat::latent584 ? kLatent584 : kLatent656;
}

// The bits of the fp32 number that an exponent stands for; of 255, which stands for none, they are those of NaN.
constexpr unsigned latent_scale_bits(unsigned char exponent) {
  return exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : static_cast<unsigned>(exponent) << 23;
}

constexpr int scales_of_row(const LatentRows& rows) { return rows.narrow_columns / rows.columns_of_scale; }

// Where the data and the scales of a token lie, in bytes from the begin of its page, or of its sequence where there are no
// pages. `stride`: that of tokens of K.
constexpr long long latent_data_at(const LatentRows& rows, long long stride, int token) {
  return token * (rows.scales_behind_page ? rows.data_bytes : stride);
}
constexpr long long latent_scales_at(const LatentRows& rows, long long stride, int token, int page_size) {
  if (!rows.scales_behind_page) return token * stride + rows.scales_at;
  return static_cast<long long>(page_size) * rows.data_bytes + static_cast<long long>(token) * rows.scale_bytes;
}

// The launch that widens rows, where loops read 16 bits: so many threads of a block for so many rows.
constexpr int kWideRowsThreads = 128, kWideRows = 16;

constexpr bool has_latent_rows(const KernelConfig& c) { return c.cache_format != CacheFormat::elements; }

}  // namespace flashjit
