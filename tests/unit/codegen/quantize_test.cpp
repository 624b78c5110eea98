// The rotation of templates/quantize/rotation.h against its definition, and rounding to 8 bits where the result is known.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "autotune/reference/quantize.h"
#include "compiler/spec/half.h"
#include "flashjit/flashjit.hpp"
#include "templates/dropout.h"
#include "templates/quantize/rotation.h"

namespace flashjit {
namespace {

TEST(Rotation, SignsArePhilox) {
  for (unsigned block = 0; block < 2; ++block) {
    const FourWords words = philox<10>({{block, 0, 0, 0}}, {0, 0});
    for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(kRotationSigns[4 * block + i], words.word[i]);
  }
}

TEST(Rotation, HeadDimsThatHaveOne) {
  std::vector<int> found;
  for (int d = 1; d <= 256; ++d) {
    if (rotation_sections(d) != 0) found.push_back(d);
  }
  EXPECT_EQ(found, (std::vector<int>{16, 32, 48, 64, 80, 96, 128, 160, 192, 256}));
}

TEST(Rotation, PaleysRowsAreOrthogonal) {
  for (const int order : {12, 20}) {
    for (int i = 0; i < order; ++i) {
      for (int j = 0; j < order; ++j) {
        int product = 0;
        for (int k = 0; k < order; ++k)
          product += is_negative_in_paley(order, i, k) == is_negative_in_paley(order, j, k) ? 1 : -1;
        EXPECT_EQ(product, i == j ? order : 0) << order << ", rows " << i << " and " << j;
      }
    }
  }
}

TEST(Rotation, FactorIsOneOverTheRoot) {
  for (int d = 16; d <= 256; d += 16) EXPECT_FLOAT_EQ(rotation_factor(d), 1 / std::sqrt(static_cast<float>(d)));
}

TEST(Rotation, ReferenceIsOrthogonalAndFlat) {
  for (int d = 16; d <= 256; d += 16) {
    if (rotation_sections(d) == 0) continue;
    const std::vector<double> m = reference::rotation_matrix(d);
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) {
        EXPECT_NEAR(std::fabs(m[i * d + j]), 1 / std::sqrt(d), 1e-12);
        double product = 0;
        for (int k = 0; k < d; ++k) product += m[i * d + k] * m[j * d + k];
        ASSERT_NEAR(product, i == j ? 1 : 0, 1e-12) << d << ", rows " << i << " and " << j;
      }
    }
  }
}

TEST(Rotation, NumbersOfEightBits) {
  using reference::round_narrow;
  const std::pair<double, double> e4m3[] = {{1, 1},       {1.0625, 1},       {1.1875, 1.25}, {-1.0626, -1.125},
                                            {0x1p-10, 0}, {0x3p-10, 0x1p-8}, {447, 448},     {1e9, 448},
                                            {-464, -448}, {17, 16},          {19, 20},       {0.0146484375, 0.015625}};
  for (const auto& [x, rounded] : e4m3) EXPECT_EQ(round_narrow(Dtype::E4M3, x), rounded) << x;
  const std::pair<double, double> e5m2[] = {{1.125, 1},   {1.375, 1.5}, {57344, 57344},
                                            {1e9, 57344}, {0x1p-17, 0}, {0x3p-17, 0x1p-15}};
  for (const auto& [x, rounded] : e5m2) EXPECT_EQ(round_narrow(Dtype::E5M2, x), rounded) << x;
}

struct Rounded {
  std::vector<std::uint8_t> y;
  std::vector<float> scale;
};

Rounded run(Engine& engine, const std::string& words, std::vector<float> x, std::int64_t d, std::int64_t scales) {
  const auto kernel = engine.prepare("quantize fp32 d=" + std::to_string(d) + words);
  EXPECT_TRUE(kernel) << kernel.error().message;
  Rounded result{std::vector<std::uint8_t>(x.size()), std::vector<float>(static_cast<std::size_t>(scales), NAN)};
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / d;
  Arguments a;
  a.params["x"] = {x.data(), "fp32", {1, rows, 1, d}, {}};
  a.params["y"] = {result.y.data(), words.find("e5m2") == words.npos ? "e4m3" : "e5m2", {1, rows, 1, d}, {}};
  const bool blocks = words.find("block") != words.npos;
  a.params["scale"] = {result.scale.data(),
                       "fp32",
                       blocks ? std::vector<std::int64_t>{1, scales, 1} : std::vector<std::int64_t>{1, 1},
                       {}};
  const auto done = (*kernel)->run(a);
  EXPECT_TRUE(done) << done.error().message;
  return result;
}

struct Quantize : testing::Test {
  void SetUp() override {
    auto made = Engine::create({.device = Device::Host, .disk_cache = false, .threads = 2});
    if (!made) GTEST_SKIP() << made.error().message;
    engine = *made;
  }
  std::shared_ptr<Engine> engine;
};

// Every code comes back as it is, times any scale.
TEST_F(Quantize, CodesStay) {
  for (const auto& [dtype, words, least] : {std::tuple(Dtype::E4M3, "", -20), {Dtype::E5M2, " out=e5m2", -8}}) {
    for (int power = least; power < 9; power += 7) {
      std::vector<float> x;
      std::vector<std::uint8_t> codes;
      for (int code = 0; code < 256; ++code) {
        const auto byte = static_cast<std::uint8_t>(code);
        const float number = load_float(dtype, &byte, 0);
        if (!std::isfinite(number)) continue;
        codes.push_back(byte);
        x.push_back(std::ldexp(number, power));
      }
      while (x.size() % 8 != 0) x.push_back(0), codes.push_back(0);
      const Rounded rounded = run(*engine, words, x, 8, 1);
      EXPECT_EQ(rounded.scale[0], std::ldexp(1.0f, power));
      EXPECT_EQ(rounded.y, codes) << words << " times 2^" << power;
    }
  }
}

// Multiplied with the transposed matrix, numbers are near those that were rotated: half of their last bit at most, of the
// largest in the row all together.
TEST_F(Quantize, RotationIsUndone) {
  std::mt19937_64 random(5);
  for (const std::int64_t d : {16, 48, 64, 80, 96, 128, 160, 192, 256}) {
    constexpr std::int64_t kRows = 70;
    std::vector<float> x(static_cast<std::size_t>(kRows * d));
    for (float& value : x) value = std::normal_distribution<float>()(random);
    const Rounded rounded = run(*engine, " rotate scales=block(64)", x, d, 2);
    const std::vector<double> m = reference::rotation_matrix(static_cast<int>(d));
    for (std::int64_t row = 0; row < kRows; ++row) {
      double off = 0, norm = 0;
      for (std::int64_t c = 0; c < d; ++c) {
        double back = 0;
        for (std::int64_t i = 0; i < d; ++i)
          back += m[i * d + c] * e4m3_to_float(rounded.y[row * d + i]) * rounded.scale[row / 64];
        off += std::pow(back - x[row * d + c], 2);
        norm += std::pow(x[row * d + c], 2);
      }
      ASSERT_LT(std::sqrt(off), 0.0625 * std::sqrt(norm)) << "d=" << d << ", row " << row;
    }
  }
}

TEST_F(Quantize, NothingAndWhatIsNotFinite) {
  std::vector<float> x(16, 0.0f);
  Rounded rounded = run(*engine, "", x, 16, 1);
  EXPECT_EQ(rounded.scale[0], 1);
  for (const std::uint8_t code : rounded.y) EXPECT_EQ(code & 0x7f, 0);
  x = {1, INFINITY, -INFINITY, NAN, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -3.5f};
  for (const char* words : {"", " out=e5m2"}) {
    rounded = run(*engine, words, x, 16, 1);
    const Dtype dtype = *words == 0 ? Dtype::E4M3 : Dtype::E5M2;
    EXPECT_EQ(rounded.scale[0], 3.5f / (dtype == Dtype::E4M3 ? 448 : 57344));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float y = load_float(dtype, rounded.y.data(), static_cast<std::int64_t>(i));
      EXPECT_EQ(std::isnan(y), !std::isfinite(x[i])) << words << i;
    }
  }
}

// Rows that turn are those of a call that turned them before, by hand.
TEST_F(Quantize, TurnsRowsFirst) {
  constexpr std::int64_t kRows = 5, kColumns = 32;
  std::mt19937_64 random(6);
  std::vector<float> x(kRows * kColumns), turned;
  for (float& value : x) value = std::normal_distribution<float>()(random);
  for (const bool half : {true, false}) {
    turned = x;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t pair = 0; pair < 8; ++pair) {
        float &a = turned[static_cast<std::size_t>(row * kColumns + (half ? pair : 2 * pair))],
              &b = turned[static_cast<std::size_t>(row * kColumns + (half ? pair + 8 : 2 * pair + 1))];
        const double angle = static_cast<double>(row) * std::pow(100.0, -static_cast<double>(pair) / 8);
        const double first = a * std::cos(angle) - b * std::sin(angle),
                     second = b * std::cos(angle) + a * std::sin(angle);
        a = static_cast<float>(first), b = static_cast<float>(second);
      }
    }
    for (const std::string words : {"", " rotate"}) {
      const std::string rope = half ? " rope=half(16) rope_base=100" : " rope=interleaved(16) rope_base=100";
      const Rounded ours = run(*engine, words + rope, x, kColumns, 1),
                    by_hand = run(*engine, words, turned, kColumns, 1);
      EXPECT_FLOAT_EQ(ours.scale[0], by_hand.scale[0]);
      EXPECT_EQ(ours.y, by_hand.y) << words << rope;
    }
  }
}

}  // namespace
}  // namespace flashjit
