// Cases of merges: results over parts of the keys with parts that have seen nothing, and LSE far apart.
#pragma once

#include "tests/random/random.h"
#include "tests/random/spec_generator.h"

namespace flashjit::testing_random {

Case draw_merge(std::uint64_t seed, const GeneratorOptions& options);

// `batch` sequences of `queries`, or as many tokens; the spec must parse.
Case make_merge(std::uint64_t seed, std::string_view spec, std::int64_t batch, std::int64_t queries,
                std::int64_t parts);

}  // namespace flashjit::testing_random
