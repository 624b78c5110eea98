#include "codegen/host/widen.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compiler/spec/half.h"

namespace flashjit::host {
namespace {

// Returns the value of a half. An e5m2 is the first byte of a half, and an e4m3, shifted into a half's exponent, is
// 2^-8 of its value.
float value_of_half(std::uint32_t magnitude) {
  const std::uint32_t exponent = magnitude >> 10, mantissa = magnitude & 0x3ff;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-24f;
  if (exponent == 31) return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : INFINITY;
  return std::bit_cast<float>((exponent + 112) << 23 | mantissa << 13);
}

template <class T>
void widen_row(const std::uint8_t* row, int columns, std::int64_t step, const std::array<std::uint32_t, 256>& bits,
               char* target) {
  for (int i = 0; i < columns; ++i) {
    const T element = static_cast<T>(bits[row[i * step]]);
    std::memcpy(target + static_cast<std::size_t>(i) * sizeof(T), &element, sizeof(T));
  }
}

}  // namespace

float value_of_code(Dtype dtype, std::uint8_t code) {
  if (dtype == Dtype::I8) return static_cast<std::int8_t>(code);
  const std::uint32_t magnitude = code & 0x7fu;
  const bool e4m3 = dtype == Dtype::E4M3;
  float value = e4m3 ? value_of_half(magnitude << 7) * 256 : value_of_half(magnitude << 8);
  if (e4m3 && magnitude == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return std::copysign(value, code & 0x80 ? -1.0f : 1.0f);
}

Widener::Widener(Dtype from, Dtype to) : bytes_(size_of(to)) {
  for (std::size_t code = 0; code < bits_.size(); ++code) {
    const float value = value_of_code(from, static_cast<std::uint8_t>(code));
    bits_[code] = to == Dtype::F32    ? std::bit_cast<std::uint32_t>(value)
                  : to == Dtype::BF16 ? float_to_bf16(value)
                                      : float_to_half(value);
  }
}

void Widener::widen(const void** rows, std::int64_t count, int columns, char* target, std::int64_t step) const {
  for (std::int64_t i = 0; i < count; ++i, target += columns * bytes_) {
    const auto* row = static_cast<const std::uint8_t*>(rows[i]);
    if (bytes_ == 4) widen_row<std::uint32_t>(row, columns, step, bits_, target);
    else widen_row<std::uint16_t>(row, columns, step, bits_, target);
    rows[i] = target;
  }
}

}  // namespace flashjit::host
