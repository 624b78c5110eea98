// Where a row of a cache of latents lies, by key.
#pragma once

#include "templates/kv_rows.cuh"
#include "templates/latents/rows.h"

namespace flashjit {

constexpr LatentRows kLatents = latent_rows(config.cache_format);

struct LatentRow {
  const unsigned char *data, *scales;
  Int64 number;   // among all rows of K
  bool is_there;  // its page is one of the pool; else it is a row of another
};

// `begin`: of the page, or where there are no pages of the sequence.
__device__ inline LatentRow latent_row_at(const unsigned char* begin, Int64 stride, int token, Int64 number,
                                          bool is_there) {
  return {begin + latent_data_at(kLatents, stride, token),
          begin + latent_scales_at(kLatents, stride, token, config.page_size), number, is_there};
}
template <class T, int page_size>
__device__ inline LatentRow latent_row_in(const PagedRows<T, page_size>& rows, const KernelParams&, const Sequence&,
                                          int key) {
  const unsigned page = rows.page_id(key / page_size, true);
  const int token = key % page_size;
  return latent_row_at(rows.begin_of(page), rows.stride, token, static_cast<Int64>(page) * page_size + token,
                       rows.has_row(key));
}
template <class T>
__device__ inline LatentRow latent_row_in(const StridedRows<T>& rows, const KernelParams& p, const Sequence& seq,
                                          int key) {
  const Int64 before = kKeyRows == Rows::packed ? seq.k_token : static_cast<Int64>(seq.b) * p.k_len;
  return latent_row_at(rows.row(0), p.k_stride.token, key, before + key, true);
}

__device__ inline LatentRow latent_row(const KernelParams& p, const Sequence& seq, int key) {
  const auto* first = static_cast<const unsigned char*>(p.k) + key_begin(p.k_stride, seq);
  return latent_row_in(key_rows(p, p.k_stride, first, seq), p, seq, key);
}

}  // namespace flashjit
