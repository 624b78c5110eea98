// Writes V^T of a call (v_transposed) as rows of V, in a launch before loops that read such rows.
#pragma once

#include "templates/sequence.cuh"
#include "templates/values/layout.h"

namespace flashjit {

// Each block has 64 keys of a KV head, whose rows lie [token, head].
__device__ inline void write_value_rows(const KernelParams& params, char* value_rows) {
  constexpr int kRow = value_row_bytes(config);
  const int number = blockIdx.x / config.heads_kv, head = blockIdx.x % config.heads_kv;
  const int tiles = (params.k_len + kValueRowsKeys - 1) / kValueRowsKeys;
  const auto [b, tile] = kKeyRows == Rows::packed
                             ? numbered_tile(params.offsets_k, params.batch, kValueRowsKeys, number)
                             : NumberedTile{number / tiles, number % tiles};
  const Sequence seq = sequence_of(params, b, head * group_size(config));
  const int key = tile * kValueRowsKeys, keys = min(seq.k_len - key, kValueRowsKeys);
  if (keys <= 0) return;
  extern __shared__ __align__(16) unsigned char rows[];
  const auto* columns = static_cast<const unsigned char*>(params.v) + value_column(params.v_stride, seq, key);
#pragma unroll 4
  for (int i = threadIdx.x; i < kRow * kValueRowsKeys; i += kValueRowsThreads) {
    const int column = i / kValueRowsKeys, row = i % kValueRowsKeys;
    const bool is_one = column < config.head_dim_v && row < keys;
    rows[row * kRow + column] = is_one ? columns[column * params.v_stride.token + row] : 0;
  }
  __syncthreads();
  const Int64 token = (kKeyRows == Rows::packed ? seq.k_token : static_cast<Int64>(b) * params.k_len) + key;
  char* to = value_rows + (token * config.heads_kv + head) * kRow;
  constexpr int kChunks = kRow / 16;
  for (int i = threadIdx.x; i < keys * kChunks; i += kValueRowsThreads) {
    const int row = i / kChunks, at = i % kChunks * 16;
    *reinterpret_cast<uint4*>(to + static_cast<Int64>(row) * config.heads_kv * kRow + at) =
        *reinterpret_cast<const uint4*>(rows + row * kRow + at);
  }
}

}  // namespace flashjit
