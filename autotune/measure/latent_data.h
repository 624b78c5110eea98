// Rows of a cache of latents are made by rounding random numbers, because random bytes are often NaN.
#pragma once

#include "autotune/measure/problem.h"

namespace flashjit {

void set_latents(NamedTensor& k, const AttentionSpec& spec, std::uint64_t seed);
// Sets all bits of a row, which makes it NaN. Rows are counted in the order of their tokens.
void poison_latent(NamedTensor& k, const AttentionSpec& spec, std::int64_t row);

}  // namespace flashjit
