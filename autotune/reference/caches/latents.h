// These functions tell for a cache of latents (kv=latent656, kv=latent584) where rows lie in a tensor, what they hold,
// and what a row of numbers becomes there.
#pragma once

#include <cstdint>

#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::reference {

struct LatentRow {
  std::uint8_t *data = nullptr, *scales = nullptr;
};

// Returns the row of a token in the page that begins at `begin`, or in a sequence if there are no pages. `stride` is
// the number of bytes from a token to the next.
LatentRow latent_row(const AttentionSpec& spec, std::uint8_t* begin, std::int64_t token, std::int64_t stride);

// Returns a column as products have it: bf16.
float load_latent(const AttentionSpec& spec, const LatentRow& row, int column);
// Rounds d_qk numbers to the row. The scale of columns is the largest of them over 448, or the power of two above that.
void store_latents(const AttentionSpec& spec, const LatentRow& row, const float* numbers);

}  // namespace flashjit::reference
