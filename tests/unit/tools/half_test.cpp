// The conversions of compiler/spec/half.h against tables from the definition of the formats, and against arithmetic.
#include "compiler/spec/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace flashjit::reference {
namespace {

struct Row {
  std::uint16_t bits;
  float value;
};

TEST(Half, KnownFp16) {
  for (const Row& row : {Row{0x0000, 0.0f},
                         {0x3c00, 1.0f},
                         {0xc000, -2.0f},
                         {0x7bff, 65504.0f},
                         {0x0400, 0x1p-14f},
                         {0x0001, 0x1p-24f},
                         {0x03ff, 1023 * 0x1p-24f},
                         {0x3555, 0.333251953125f},
                         {0x7c00, INFINITY},
                         {0xfc00, -INFINITY}}) {
    EXPECT_EQ(half_to_float(row.bits), row.value) << row.bits;
    EXPECT_EQ(float_to_half(row.value), row.bits) << row.value;
  }
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_TRUE(std::signbit(half_to_float(0x8000)));
}

TEST(Half, KnownBf16) {
  for (const Row& row : {Row{0x0000, 0.0f},
                         {0x3f80, 1.0f},
                         {0xc000, -2.0f},
                         {0x7f7f, 0x1.fep127f},
                         {0x0080, 0x1p-126f},
                         {0x0001, 0x1p-133f},
                         {0x3eab, 0.333984375f},
                         {0x7f80, INFINITY},
                         {0xff80, -INFINITY}}) {
    EXPECT_EQ(bf16_to_float(row.bits), row.value) << row.bits;
    EXPECT_EQ(float_to_bf16(row.value), row.bits) << row.value;
  }
}

TEST(Half, EveryPatternSurvives) {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float half = half_to_float(pattern), brain = bf16_to_float(pattern);
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(half))));
    } else {
      EXPECT_EQ(float_to_half(half), pattern);
    }
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(brain))));
    } else {
      EXPECT_EQ(float_to_bf16(brain), pattern);
    }
  }
}

TEST(Half, TiesGoToEven) {
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00);      // between 1 and 1 + 2^-10
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3c02);  // between 1 + 2^-10 and 1 + 2^-9
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);  // half of the smallest subnormal
  EXPECT_EQ(float_to_half(3 * 0x1p-25f), 0x0002);
  EXPECT_EQ(float_to_half(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(2047 * 0x1p-25f), 0x0400);  // a subnormal rounds up to the smallest normal
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Half, KnownEightBits) {
  for (const Row& row : {Row{0x00, 0.0f},
                         {0x38, 1.0f},
                         {0xc0, -2.0f},
                         {0x7e, 448.0f},
                         {0x08, 0x1p-6f},
                         {0x01, 0x1p-9f},
                         {0x07, 7 * 0x1p-9f},
                         {0xbd, -1.625f}}) {
    EXPECT_EQ(e4m3_to_float(static_cast<std::uint8_t>(row.bits)), row.value) << row.bits;
    EXPECT_EQ(float_to_e4m3(row.value), row.bits) << row.value;
  }
  for (const Row& row : {Row{0x00, 0.0f},
                         {0x3c, 1.0f},
                         {0xc0, -2.0f},
                         {0x7b, 57344.0f},
                         {0x04, 0x1p-14f},
                         {0x01, 0x1p-16f},
                         {0x03, 3 * 0x1p-16f},
                         {0xbe, -1.5f},
                         {0x7c, INFINITY},
                         {0xfc, -INFINITY}}) {
    EXPECT_EQ(e5m2_to_float(static_cast<std::uint8_t>(row.bits)), row.value) << row.bits;
    EXPECT_EQ(float_to_e5m2(row.value), row.bits) << row.value;
  }
  for (const std::uint8_t code : {0x7f, 0xff}) EXPECT_TRUE(std::isnan(e4m3_to_float(code)));
  for (const std::uint8_t code : {0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff}) EXPECT_TRUE(std::isnan(e5m2_to_float(code)));
  EXPECT_EQ(float_to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(float_to_e4m3(INFINITY), 0x7f);
  EXPECT_EQ(float_to_e5m2(-1e9f), 0xfb);
  EXPECT_EQ(float_to_int8(-1e9f), -127);
  EXPECT_EQ(float_to_int8(2.5f), 2);
}

TEST(Half, EveryCodeOfEightBitsComesBack) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    for (const Dtype dtype : {Dtype::E4M3, Dtype::E5M2, Dtype::I8}) {
      const float value = load_float(dtype, &byte, 0);
      std::uint8_t back = 0;
      store_float(dtype, &back, 0, value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(load_float(dtype, &back, 0))) << name(dtype) << " " << code;
      } else if (dtype != Dtype::I8 || code != 0x80) {
        EXPECT_EQ(back, byte) << name(dtype);
      }
    }
  }
}

// Nearest means: no other value of the type is closer.
TEST(Half, NearestAmongNeighbours) {
  std::mt19937 random(20260);
  for (int i = 0; i < 20000; ++i) {
    const float x =
        std::ldexp(std::uniform_real_distribution<float>(-2, 2)(random), static_cast<int>(random() % 38) - 24);
    const std::uint16_t bits = float_to_half(x);
    if ((bits & 0x7fff) == 0 || (bits & 0x7fff) >= 0x7bff) continue;
    const double error = std::fabs(static_cast<double>(half_to_float(bits)) - x);
    EXPECT_LE(error, std::fabs(static_cast<double>(half_to_float(bits + 1)) - x)) << x;
    EXPECT_LE(error, std::fabs(static_cast<double>(half_to_float(bits - 1)) - x)) << x;
    EXPECT_LE(error, std::max(unit_roundoff(Dtype::F16) * std::fabs(x), 0x1p-25)) << x;
    EXPECT_LE(std::fabs(static_cast<double>(round_to(Dtype::BF16, x)) - x), unit_roundoff(Dtype::BF16) * std::fabs(x))
        << x;
  }
}

}  // namespace
}  // namespace flashjit::reference
