// Widens rows of a cache of latents for loops that read K of 16 bits. This launch before them leaves a wide row for
// each row of K, at its number there, so that pages and lists of rows stay as they are. It widens all rows, whether
// they are seen or not.
#pragma once

#include "templates/cache_elements.cuh"
#include "templates/latents/row_pointers.cuh"

namespace flashjit {

__device__ inline float scale_of(const LatentRow& row, int column) {
  const int number = column / kLatents.columns_of_scale;
  if constexpr (kLatents.scale == LatentScale::number) return reinterpret_cast<const float*>(row.scales)[number];
  else return __uint_as_float(latent_scale_bits(row.scales[number]));
}

constexpr int kWideColumns = 8;  // The columns that a thread has of a row.

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

// Returns how many rows of K lie in a page or, without pages, belong to a batch index; wide_row_count() counts all
// of them.
__device__ inline int rows_of_block(const KernelParams& p) {
  return config.page_size > 0 ? config.page_size : kChosen ? p.key_rows : p.k_len;
}
__device__ inline Int64 wide_row_count(const KernelParams& p) {
  if constexpr (kKeyRows == Rows::packed) return p.offsets_k[p.batch];
  const int batch = kChosen ? p.batch / p.queries_of_sequence : p.batch;
  return static_cast<Int64>(config.page_size > 0 ? p.pages : batch) * rows_of_block(p);
}

// Each block widens some rows of K, of any sequence.
__device__ inline void write_wide_rows(const KernelParams& params, void* wide_rows) {
  constexpr int kOfRow = config.head_dim_qk / kWideColumns;
  const int of_block = rows_of_block(params);
  const Int64 first = static_cast<Int64>(blockIdx.x) * kWideRows,
              count = min(wide_row_count(params) - first, Int64{kWideRows});
#pragma unroll 1
  for (int i = threadIdx.x; i < count * kOfRow; i += kWideRowsThreads) {
    const Int64 number = first + i / kOfRow, block = kKeyRows == Rows::packed ? 0 : number / of_block;
    const auto* begin = static_cast<const unsigned char*>(params.k) + block * params.k_stride.batch;
    const LatentRow row = latent_row(begin, params.k_stride.token, static_cast<int>(number - block * of_block));
    const int column = i % kOfRow * kWideColumns;
    *reinterpret_cast<uint4*>(static_cast<u16*>(wide_rows) + number * config.head_dim_qk + column) =
        wide_columns(row, column);
  }
}

}  // namespace flashjit
