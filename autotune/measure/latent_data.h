// Random rows of a cache of latents: rows that some numbers are rounded to, since bytes at random are often NaN.
#pragma once

#include "autotune/measure/problem.h"

namespace flashjit {

void set_latents(NamedTensor& k, const AttentionSpec& spec, std::uint64_t seed);
// Sets all bits of a row, of all rows in the order of their tokens: NaN.
void poison_latent(NamedTensor& k, const AttentionSpec& spec, std::int64_t row);

}  // namespace flashjit
