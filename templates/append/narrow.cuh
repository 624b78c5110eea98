// Rounds numbers to elements of 8 bits as engines that fill a cache do: to the nearest, to the even one of two that are
// equally near, and beyond the largest to the largest. Infinity and NaN become those of the type. This file includes
// nothing: a test compiles it for the host.
#pragma once

namespace flashjit::appending {

// Returns the number as a byte: sign, exponent, and mantissa_bits bits of mantissa. The least exponent is that of
// subnormals, too.
template <int mantissa_bits, int least_exponent>
__device__ inline unsigned to_float8(float x, float largest, unsigned infinity) {
  constexpr unsigned kAllExponent = 0x7f800000, kNan = 0x7f;
  const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude >= kAllExponent) return sign | (magnitude > kAllExponent ? kNan : infinity);
  const float size = fminf(__uint_as_float(magnitude), largest);
  const int exponent = max(static_cast<int>(__float_as_uint(size) >> 23) - 127, least_exponent);
  // The last place of `base` is that of the element, so that adding `base` leaves the last places rounded.
  const float base = __uint_as_float(static_cast<unsigned>(exponent - mantissa_bits + 23 + 127) << 23);
  const unsigned places = __float_as_uint(size + base) - __float_as_uint(base);
  return sign | ((static_cast<unsigned>(exponent - least_exponent) << mantissa_bits) + places);
}

template <Narrow cache>
__device__ inline unsigned narrowed(float x) {
  if constexpr (cache == Narrow::e4m3) return to_float8<3, -6>(x, 448.0f, 0x7f);
  else if constexpr (cache == Narrow::e5m2) return to_float8<2, -14>(x, 57344.0f, 0x7c);
  else return x == x ? __float_as_uint(fminf(fmaxf(x, -127.0f), 127.0f) + 0x1.8p23f) & 0xff : 0;
}

}  // namespace flashjit::appending
