// Turns rows of 16 bits into rows of a cache of latents (quantize with out=latent656), as `append` writes them for the
// same numbers. Where scales lie behind a page, the batches of x are the pages.
#pragma once

#include "templates/append/latents.cuh"

namespace flashjit {

__device__ inline void quantize_latents(const KernelParams& p) {
  constexpr int kPieces = new_key_pieces(config);  // The pieces of a row.
  const Int64 item = static_cast<Int64>(blockIdx.x) * kAppendThreads + threadIdx.x, number = item / kPieces;
  if (number >= static_cast<Int64>(p.batch) * p.q_len) return;
  const Int64 b = number / p.q_len, token = number % p.q_len;
  const auto* row = static_cast<const appending::RowElement*>(p.x) + b * p.x_stride.batch + token * p.x_stride.token;
  const unsigned char* begin = static_cast<const unsigned char*>(p.y) + b * p.y_stride.batch;
  const Int64 stride = p.y_stride.token;
  const LatentRow to = {begin + latent_data_at(kLatents, stride, static_cast<int>(token)),
                        begin + latent_scales_at(kLatents, stride, static_cast<int>(token), p.q_len)};
  const int column = static_cast<int>(item % kPieces) * kPieceColumns;
  appending::write_latent(to, row, column, appending::load_piece<config.copy_bytes>(row + column));
}

}  // namespace flashjit
