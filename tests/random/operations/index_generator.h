// Cases of index: scores and lists in every layout, with lengths, masks, elements of 8 bits and their scales.
#pragma once

#include "tests/random/spec_generator.h"

namespace flashjit::testing_random {

constexpr std::uint64_t kIndexesAmong = 20;  // cases one is an index

Case draw_index(std::uint64_t seed, const GeneratorOptions& options);

Case make_index(std::uint64_t seed, const FixedCase& row);

}  // namespace flashjit::testing_random
