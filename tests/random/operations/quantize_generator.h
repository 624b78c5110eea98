// Cases of quantize: rows of normal numbers, with outliers, zeros, infinity and NaN, and quotients that are halfway.
#pragma once

#include "tests/random/spec_generator.h"

namespace flashjit::testing_random {

constexpr std::uint64_t kQuantizesAmong = 20;  // cases one is a quantize

Case draw_quantize(std::uint64_t seed, const GeneratorOptions& options);

// As many tokens as each of q_lens says.
Case make_quantize(std::uint64_t seed, const FixedCase& row);

// A case of attention whose Q, K and V may be rounded first, or the case as it is.
Case draw_compute(Case c);

// The same, or, where products are of 8 bits, sometimes with weights that may be interpolated.
Case draw_linear(Case c);

}  // namespace flashjit::testing_random
