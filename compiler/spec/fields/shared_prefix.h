// The rules for a spec with `shared_prefix`, where the first keys of all sequences are the same, and the test whether
// these keys are read once for all.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "compiler/spec/spec.h"

namespace flashjit {

// Parameters that the specs of a cascade read besides those of the user (compiler/cascade.cpp).
namespace cascade_params {
inline constexpr std::string_view kPrefix = "shared_prefix";    // i32[1], the operand.
inline constexpr std::string_view kLens = "prefix_lens";        // i32[1], the operand k_lens.
inline constexpr std::string_view kQueries = "prefix_queries";  // i32, the queries of a sequence.
inline constexpr std::string_view kPieces = "prefix_pieces";    // u8, the number of pieces of the prefix.
inline constexpr std::array kAll = {kPrefix, kLens, kQueries, kPieces};
// So many of these, from the first on, belong to the spec that reads each sequence's own keys.
inline constexpr std::size_t kOfOwn = 2;
}  // namespace cascade_params

// Returns the reason why each sequence reads shared keys by itself, as if they were not shared; empty: they are read
// once for the queries of all, which see all of them. The expressions of the spec are resolved, here and below.
std::string why_read_by_each(const AttentionSpec& spec);
Result<void> check_shared_prefix(const AttentionSpec& spec);

}  // namespace flashjit
