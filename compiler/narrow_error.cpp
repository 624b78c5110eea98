#include "compiler/narrow_error.h"

namespace flashjit {

NarrowError rounding_error(const AttentionSpec& spec, bool rotated) {
  // The errors are those for scales of heads or blocks, and with or without rotation [M59]. Scales of single keys have
  // about the errors of scales of heads.
  constexpr NarrowError kE4m3[2][2] = {{{.0464, .0943}, {.0456, .0635}}, {{.0468, .0727}, {.0480, .0550}}};
  constexpr NarrowError kE5m2[2][2] = {{{.0928, .2873}, {.0913, .0954}}, {{.0943, .2961}, {.0932, .0875}}};
  const auto is_e5m2 = [&](Dtype dtype) { return dtype == Dtype::E5M2; };
  const bool wide = spec.compute ? is_e5m2(*spec.compute) : is_e5m2(spec.dtype) || is_e5m2(spec.kv_dtype);
  return (wide ? kE5m2 : kE4m3)[spec.scale_block > 0][rotated];
}

NarrowError weights_error(Dtype weights, bool interpolated) {
  // The errors are those of weights of 8 and of 16 bits [M60], and of interpolated ones [M61].
  constexpr NarrowError kNarrow = {.0258, .0097}, kInterpolated = {.0309, .0094}, kHalf = {.0017, .0016};
  return size_of(weights) > 1 ? kHalf : interpolated ? kInterpolated : kNarrow;
}

}  // namespace flashjit
