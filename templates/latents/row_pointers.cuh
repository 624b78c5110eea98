// Finds where a row of a cache of latents lies.
#pragma once

#include "templates/kv_rows.cuh"
#include "templates/latents/rows.h"

namespace flashjit {

constexpr LatentRows kLatents = latent_rows(config.cache_format);

struct LatentRow {
  const unsigned char *data, *scales;
};

// Returns the row of a token behind `begin`, where a page begins or, without pages, a sequence.
__device__ inline LatentRow latent_row(const unsigned char* begin, Int64 stride, int token) {
  return {begin + latent_data_at(kLatents, stride, token),
          begin + latent_scales_at(kLatents, stride, token, config.page_size)};
}

// Returns the row of a key.
template <class KeyRowsOfBytes>
__device__ inline LatentRow latent_row(const KeyRowsOfBytes& rows, Int64 stride, int key) {
  constexpr int kPage = config.page_size > 0 ? config.page_size : 1;
  const int token = config.page_size > 0 ? key % kPage : key;
  return latent_row(rows.row(key) - token * stride, stride, token);
}

// Returns the row of a key whose row, or page, has this number.
template <class KeyRowsOfBytes>
__device__ inline LatentRow numbered_latent_row(const KeyRowsOfBytes& rows, Int64 stride, u32 number, int key) {
  constexpr u32 kPage = config.page_size > 0 ? config.page_size : 1;
  const u32 of_all = kKeyRows == Rows::chosen ? number : static_cast<u32>(key);
  const int token = static_cast<int>(config.page_size > 0 ? of_all % kPage : of_all);
  return latent_row(rows.numbered_row(number, key) - token * stride, stride, token);
}

}  // namespace flashjit
