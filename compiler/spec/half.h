// Conversions between float and fp16, bf16 and the types of 8 bits, written from the definition of the formats. They
// round to nearest, ties to even, and NaN stays NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "compiler/spec/dtype.h"

namespace flashjit {

inline float half_to_float(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::bit_cast<float>(0x7fc00000u | (bits & 0x8000u) << 16) : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

inline std::uint16_t float_to_half(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7e00;
  const float magnitude = std::fabs(value);
  // 65520 is halfway between the largest half and the next power of two. Ties go to even, which is infinity here.
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  int exponent = std::ilogb(magnitude);
  if (exponent < -14) exponent = -14;  // Subnormals share the spacing of the smallest normal exponent.
  // The value in units of the last place is exact, because a float has 24 bits and the factor is a power of two.
  const double units = std::ldexp(static_cast<double>(magnitude), 10 - exponent);
  const int rounded = static_cast<int>(std::nearbyint(units));
  // A carry out of the mantissa runs into the exponent field, where the next binade needs it.
  return sign | static_cast<std::uint16_t>(((exponent + 14) << 10) + rounded);
}

inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  const std::uint32_t half_way_less_one = 0x7fff + (bits >> 16 & 1);
  return static_cast<std::uint16_t>((bits + half_way_less_one) >> 16);
}

// e4m3 has no infinity, and its NaN has all bits set behind the sign. e5m2 is fp16 without the last eight bits.
inline float e4m3_to_float(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u | (bits & 0x80u) << 24);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

inline float e5m2_to_float(std::uint8_t bits) { return half_to_float(static_cast<std::uint16_t>(bits << 8)); }

// A finite number beyond the largest of the type becomes that largest one, as is usual in caches. Infinity stays
// infinity, or becomes NaN in a type without one.
inline std::uint8_t float_to_e4m3(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (!std::isfinite(magnitude)) return sign | 0x7f;
  if (magnitude >= 448) return sign | 0x7e;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -6);
  const auto rounded = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return sign | static_cast<std::uint8_t>(((exponent + 6) << 3) + rounded);
}

inline std::uint8_t float_to_e5m2(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(magnitude)) return sign | 0x7f;
  if (std::isinf(magnitude)) return sign | 0x7c;
  if (magnitude >= 57344) return sign | 0x7b;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const auto rounded = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 2 - exponent)));
  return sign | static_cast<std::uint8_t>(((exponent + 14) << 2) + rounded);
}

inline std::int8_t float_to_int8(float value) {
  return std::isnan(value) ? std::int8_t{0}
                           : static_cast<std::int8_t>(std::nearbyint(std::clamp(value, -127.0f, 127.0f)));
}

// Returns `value` as the type holds it.
inline float round_to(Dtype dtype, float value) {
  if (dtype == Dtype::F16) return half_to_float(float_to_half(value));
  if (dtype == Dtype::BF16) return bf16_to_float(float_to_bf16(value));
  if (dtype == Dtype::E4M3) return e4m3_to_float(float_to_e4m3(value));
  if (dtype == Dtype::E5M2) return e5m2_to_float(float_to_e5m2(value));
  return value;
}

// Returns the unit roundoff, which is the largest relative error of rounding to the type.
inline double unit_roundoff(Dtype dtype) {
  if (dtype == Dtype::F16) return 0x1p-11;
  if (dtype == Dtype::BF16) return 0x1p-8;
  if (dtype == Dtype::E4M3) return 0x1p-4;
  if (dtype == Dtype::E5M2) return 0x1p-3;
  return 0x1p-24;
}

inline float load_float(Dtype dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case Dtype::F16: return half_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case Dtype::BF16: return bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case Dtype::F32: return static_cast<const float*>(data)[index];
    case Dtype::E4M3: return e4m3_to_float(static_cast<const std::uint8_t*>(data)[index]);
    case Dtype::E5M2: return e5m2_to_float(static_cast<const std::uint8_t*>(data)[index]);
    case Dtype::I8: return static_cast<const std::int8_t*>(data)[index];
    default: return NAN;
  }
}

inline void store_float(Dtype dtype, void* data, std::int64_t index, float value) {
  switch (dtype) {
    case Dtype::F16: static_cast<std::uint16_t*>(data)[index] = float_to_half(value); break;
    case Dtype::BF16: static_cast<std::uint16_t*>(data)[index] = float_to_bf16(value); break;
    case Dtype::F32: static_cast<float*>(data)[index] = value; break;
    case Dtype::E4M3: static_cast<std::uint8_t*>(data)[index] = float_to_e4m3(value); break;
    case Dtype::E5M2: static_cast<std::uint8_t*>(data)[index] = float_to_e5m2(value); break;
    case Dtype::I8: static_cast<std::int8_t*>(data)[index] = float_to_int8(value); break;
    default: break;
  }
}

}  // namespace flashjit
