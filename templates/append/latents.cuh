// Rounds rows of a cache of latents, for new tokens or rows that a quantize reads. A thread rounds eight columns, and
// finds their scale by itself.
#pragma once

#include "templates/append/narrow.cuh"
#include "templates/append/turn.cuh"
#include "templates/latents/row_pointers.cuh"

namespace flashjit::appending {

// Stores the scale of columns up to `largest` in size if it is this thread's, and returns it. Infinity becomes NaN.
__device__ inline float latent_scale(float largest, unsigned char* scales, int number, bool is_own) {
  const float least = fmaxf(__fdiv_rn(largest, 448.0f), 0x1p-126f);
  if constexpr (kLatents.scale == LatentScale::number) {
    if (is_own) reinterpret_cast<float*>(scales)[number] = least;
    return least;
  } else {
    // The exponent is rounded up.
    const auto exponent = static_cast<unsigned char>((__float_as_uint(least) + 0x7fffff) >> 23);
    if (is_own) scales[number] = exponent;
    return __uint_as_float(latent_scale_bits(exponent));
  }
}

// Writes a piece of this row, which begins at `column`.
__device__ inline void write_latent(const LatentRow& to, const RowElement* row, int column, uint4 piece) {
  auto* const data = const_cast<unsigned char*>(to.data);
  if (column >= kLatents.narrow_columns) {
    auto* const wide = reinterpret_cast<u32*>(data + kLatents.wide_at) + (column - kLatents.narrow_columns) / 2;
    wide[0] = piece.x, wide[1] = piece.y, wide[2] = piece.z, wide[3] = piece.w;
    return;
  }
  const int number = column / kLatents.columns_of_scale, first = number * kLatents.columns_of_scale;
  float largest = 0;
#pragma unroll 1
  for (int c = first; c < first + kLatents.columns_of_scale; c += kPieceColumns) {
    const Columns columns = columns_of(load_piece<config.copy_bytes>(row + c));
#pragma unroll
    for (int i = 0; i < kPieceColumns; ++i) largest = fmaxf(largest, fabsf(columns.of[i]));
  }
  const float scale = latent_scale(largest, const_cast<unsigned char*>(to.scales), number, column == first);
  const uint2 narrow = narrowed_piece<Narrow::e4m3>(columns_of(piece), scale);
  reinterpret_cast<u32*>(data + column)[0] = narrow.x;
  reinterpret_cast<u32*>(data + column)[1] = narrow.y;
}

__device__ inline void append_latent(const KernelParams& p, const Sequence& seq, int position, const RowElement* row,
                                     int column) {
  const Piece piece = load_rotating(row, column);
  if (position < 0) return;  // The cache has no room for the row.
  const auto rows = key_rows(p, p.k_stride, static_cast<const unsigned char*>(p.k) + key_begin(p.k_stride, seq), seq);
  if (!rows.has_row(position)) return;  // No other sequence's page is written.
  write_latent(latent_row(rows, p.k_stride.token, position), row, column, rotated(p, piece, column, position));
}

}  // namespace flashjit::appending
