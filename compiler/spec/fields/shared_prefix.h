// The rules for a spec with `shared_prefix`, the first keys of whose sequences are the same, and whether these are read
// once for all.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "compiler/spec/spec.h"

namespace flashjit {

// Parameters that the specs of a cascade read beside those of the user (compiler/cascade.cpp).
namespace cascade_params {
inline constexpr std::string_view kPrefix = "shared_prefix";    // i32[1], the operand
inline constexpr std::string_view kLens = "prefix_lens";        // i32[1], the operand k_lens
inline constexpr std::string_view kQueries = "prefix_queries";  // i32, queries of a sequence
inline constexpr std::string_view kPieces = "prefix_pieces";    // u8, into which the prefix is cut
inline constexpr std::array kAll = {kPrefix, kLens, kQueries, kPieces};
inline constexpr std::size_t kOfOwn = 2;  // of these, the first, where each sequence's own keys are read
}  // namespace cascade_params

// Both of a spec whose expressions are resolved. Why each sequence reads shared keys by itself, as if they were not; empty:
// they are read for the queries of all together, which see all of them.
std::string why_read_by_each(const AttentionSpec& spec);
Result<void> check_shared_prefix(const AttentionSpec& spec);

}  // namespace flashjit
