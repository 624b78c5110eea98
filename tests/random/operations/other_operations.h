// Cases of operations other than attention.
#pragma once

#include <optional>

#include "tests/random/operations/index_generator.h"
#include "tests/random/operations/merge_generator.h"
#include "tests/random/operations/quantize_generator.h"

namespace flashjit::testing_random {

// Where the seed asks for one.
inline std::optional<Case> draw_other(std::uint64_t seed, const GeneratorOptions& options) {
  if (seed % kMergesAmong == 0) return draw_merge(seed, options);
  if (seed % kQuantizesAmong == 1) return draw_quantize(seed, options);
  if (seed % kIndexesAmong == 2) return draw_index(seed, options);
  return {};
}

// Where the row is one.
inline std::optional<Case> make_other(std::uint64_t seed, const FixedCase& row) {
  const AttentionSpec spec = *parse_spec(row.spec);
  if (attends(spec)) return {};
  if (indexes(spec)) return make_index(seed, row);
  return merges(spec) ? make_merge(seed, row) : make_quantize(seed, row);
}

}  // namespace flashjit::testing_random
