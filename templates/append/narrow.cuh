// Numbers become elements of 8 bits as whoever fills a cache rounds them: to the nearest, to the even one of two that are as
// near, and beyond the largest to the largest. Infinity and NaN become what the type has for them. No includes: a test
// compiles this for the host.
#pragma once

namespace flashjit::appending {

// As a byte: sign, exponent, so many bits of mantissa; the least exponent is that of subnormals, too.
template <int mantissa_bits, int least_exponent>
__device__ inline unsigned to_float8(float x, float largest, unsigned infinity) {
  constexpr unsigned kAllExponent = 0x7f800000, kNan = 0x7f;
  const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude >= kAllExponent) return sign | (magnitude > kAllExponent ? kNan : infinity);
  const float size = fminf(__uint_as_float(magnitude), largest);
  const int exponent = max(static_cast<int>(__float_as_uint(size) >> 23) - 127, least_exponent);
  // The last place of `base` is one of the element, so that adding `base` leaves the last places rounded.
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
