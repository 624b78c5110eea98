// Names of the values of spec fields, for the parser, the printer and the checks. The index is the value.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "compiler/spec/dtype.h"

namespace flashjit {

inline constexpr std::array<std::string_view, 5> kOperationNames = {"fwd", "bwd", "merge", "quantize", "index"};
inline constexpr std::array<std::string_view, 3> kLayoutNames = {"bshd", "bhsd", "packed"};
inline constexpr std::array<std::string_view, 2> kAlignmentNames = {"bottom_right", "top_left"};
inline constexpr std::array<std::string_view, 3> kNumericsNames = {"fast", "deterministic", "batch_invariant"};
inline constexpr std::array<std::string_view, 5> kTensorDtypeNames = {"fp16", "bf16", "fp32", "e4m3", "e5m2"};
// The dtypes that gradients, merges and quantize read, and that they and attention write.
inline constexpr std::array<std::string_view, 3> kWideDtypeNames = {"fp16", "bf16", "fp32"};
// The dtypes of 8 bits from which products are computed, or to which rows are rounded.
inline constexpr std::array<std::string_view, 2> kNarrowDtypeNames = {"e4m3", "e5m2"};
// The dtypes of K and V, and the formats of rows that have several dtypes (templates/latents/rows.h).
inline constexpr std::array<std::string_view, 8> kCacheNames = {"fp16", "bf16", "fp32",      "e4m3",
                                                                "e5m2", "int8", "latent656", "latent584"};
// The dtypes of parameters; then all dtypes.
inline constexpr std::array<std::string_view, 7> kParamDtypeNames = {"fp16", "bf16", "fp32", "i32", "i64", "u32", "u8"};
inline constexpr auto kDtypeNames = [] {
  std::array<std::string_view, std::size(kDtypes)> names;
  std::ranges::transform(kDtypes, names.begin(), &DtypeRow::name);
  return names;
}();

}  // namespace flashjit
