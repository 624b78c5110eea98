// Rows of a cache of latents for loops that read K of 16 bits: a launch before them leaves a wide row for each row of K that a
// sequence has, at its number in K, so that pages stay as they are.
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/latents/places.cuh"

namespace flashjit {

__device__ inline float scale_of(const LatentRow& row, int column) {
  const int number = column / kLatents.columns_of_scale;
  if constexpr (kLatents.scale == LatentScale::number) return reinterpret_cast<const float*>(row.scales)[number];
  else return __uint_as_float(latent_scale_bits(row.scales[number]));
}

constexpr int kWideColumns = 8;  // that a thread has of a row

__device__ inline uint4 wide_columns(const LatentRow& row, int column) {
  if (column >= kLatents.narrow_columns) {
    const auto* words =
        reinterpret_cast<const u32*>(row.data + kLatents.wide_at) + (column - kLatents.narrow_columns) / 2;
    return {words[0], words[1], words[2], words[3]};
  }
  const auto* words = reinterpret_cast<const u32*>(row.data + column);
  const float scale = scale_of(row, column);
  u32 wide[kWideColumns / 2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const HalfPairs pairs = halves_of<Narrow::e4m3>(words[i]);
    const u32 halves[2] = {pairs.low, pairs.high};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      wide[2 * i + j] = pack<config.element>(float_from_f16(static_cast<u16>(halves[j])) * scale,
                                             float_from_f16(static_cast<u16>(halves[j] >> 16)) * scale);
    }
  }
  return {wide[0], wide[1], wide[2], wide[3]};
}

// A block has some keys of a sequence.
__device__ inline void write_wide_rows(const KernelParams& params, void* wide_rows) {
  constexpr int kOfRow = config.head_dim_qk / kWideColumns;
  const int number = blockIdx.x, tiles = (params.k_len + kWideRowsKeys - 1) / kWideRowsKeys;
  const auto [b, tile] = kKeyRows == Rows::packed ? numbered_tile(params.offsets_k, params.batch, kWideRowsKeys, number)
                                                  : NumberedTile{number / tiles, number % tiles};
  const Sequence seq = sequence_of(params, b, 0);
  const int first = tile * kWideRowsKeys, keys = min(seq.k_len - first, kWideRowsKeys);
#pragma unroll 1
  for (int i = threadIdx.x; i < keys * kOfRow; i += kWideRowsThreads) {
    const LatentRow row = latent_row(params, seq, first + i / kOfRow);
    const int column = i % kOfRow * kWideColumns;
    *reinterpret_cast<uint4*>(static_cast<u16*>(wide_rows) + row.number * config.head_dim_qk + column) =
        wide_columns(row, column);
  }
}

}  // namespace flashjit
