// On a processor, attention reads the rows of a cache of latents (kv=latent656) through these functions.
#pragma once

#include <cstdint>
#include <memory>

#include "codegen/host/backend.h"
#include "codegen/host/problem.h"
#include "templates/latents/rows.h"

namespace flashjit::host {

// Returns a kernel that widens the rows of all sequences, and then runs `attention` on these.
std::unique_ptr<HostKernel> kernel_of_latents(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention);

// Rounds a row of numbers to what memory holds of it.
void store_latent(const LatentRows& rows, const float* row, unsigned char* data, unsigned char* scales);

// These are the rows of one call, which has one KV head.
class LatentCache {
 public:
  LatentCache(const AttentionSpec& spec, const KernelParams& params);
  std::int64_t row_count() const { return row_count_; }          // The rows of K, of all pages where it has pages.
  std::int64_t rows_of_block() const { return rows_of_block_; }  // The rows of a page, or of a sequence.
  KeyAddress address_of(std::int64_t number) const {
    return packed_ ? KeyAddress{0, number} : KeyAddress{number / rows_of_block_, number % rows_of_block_};
  }
  void widen(KeyAddress at, std::uint16_t* row) const;
  // Rounds a row of numbers to what the cache holds.
  void store(KeyAddress at, const float* row) const;

 private:
  unsigned char* block(KeyAddress at) const;
  const KernelParams& params_;
  const LatentRows rows_;
  const int page_size_;
  const bool packed_;
  std::int64_t rows_of_block_, row_count_;
};

}  // namespace flashjit::host
