// The numbers that the main step evaluates score functions on stand for what plain floats give.
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>

#include <gtest/gtest.h>

#define __device__
namespace device {  // the compiler has names like these of its own
#include "templates/symbolic.cuh"
}
#undef __device__

namespace flashjit {
namespace {

using device::flashjit::abs_i;
using device::flashjit::CappedExponent;
using device::flashjit::exponent;
using device::flashjit::KeyPosition;
using device::flashjit::Linear;
using device::flashjit::Odd;
using device::flashjit::Probe;
using device::flashjit::Scaled;
using device::flashjit::Shifted;
using device::flashjit::SmallArguments;

// As templates/scalar_math.cuh has them for plain numbers.
float to_float(int x) { return static_cast<float>(x); }
int abs_i(int x) { return std::abs(x); }
float abs_f(float x) { return std::fabs(x); }

constexpr int kQuery = 1000;
constexpr float kBias = 0.75f;

template <class Expected, class Score>
void expect_same(const Score& score) {
  static_assert(std::is_same_v<decltype(score(Scaled{}, KeyPosition<int>{})), Expected>);
  for (const float x : {-40.0f, -1.0f, 0.0f, 0.3f, 17.0f}) {
    for (const int base : {0, 960, 4096}) {
      for (const int distance : {0, 1, 8, 121}) {
        const float plain = score(x * 0.125f, base + distance);
        const auto symbolic = score(Scaled{x, 0.125f}, KeyPosition<int>{base, distance});
        const float tolerance = 1e-6f * (std::fabs(plain) + std::fabs(x) + 5000);
        EXPECT_NEAR(static_cast<float>(symbolic), plain, tolerance) << x << " " << base << " " << distance;
        EXPECT_NEAR(exponent(symbolic, 1.5f, 2.0f), plain * 1.5f - 2.0f, 2 * tolerance)
            << x << " " << base << " " << distance;
      }
    }
  }
}

TEST(Symbolic, StaysSymbolicWhereItSavesSomething) {
  expect_same<Scaled>([](auto s, auto) { return s; });
  expect_same<Scaled>([](auto s, auto) { return -(2.0f * s * 3.0f) / 4.0f; });
  expect_same<Shifted<float>>([](auto s, auto) { return s + kBias; });
  expect_same<Shifted<float>>([](auto s, auto) { return kBias - s * 2.0f; });
  expect_same<Shifted<float>>([](auto s, auto) { return 1.0f - (s + kBias + kBias); });
  expect_same<Linear>([](auto, auto k) { return to_float(k); });
  expect_same<Linear>([](auto, auto k) { return (1.0f - 2.0f * -to_float(kQuery - k) * kBias) / 3.0f - 1.0f; });
  expect_same<Shifted<Linear>>([](auto s, auto k) { return s + kBias * to_float(k - kQuery); });
  expect_same<Shifted<Linear>>([](auto s, auto k) { return to_float(-k + 3) * kBias - s; });
  expect_same<Shifted<Linear>>([](auto s, auto k) { return s + kBias + to_float(k) - 2.0f; });
  expect_same<Shifted<Linear>>([](auto s, auto k) { return to_float(k) - (s - kBias); });
}

TEST(Symbolic, IsANumberElsewhere) {
  expect_same<float>([](auto s, auto) { return s * s; });
  expect_same<float>([](auto s, auto) { return s + s; });
  expect_same<float>([](auto s, auto k) { return s * to_float(k); });
  expect_same<float>([](auto s, auto) { return (s + kBias) * 2.0f; });
  expect_same<float>([](auto, auto k) { return to_float(k) * to_float(k - kQuery); });
  expect_same<float>([](auto, auto k) { return to_float(k) - to_float(kQuery - k); });
  expect_same<float>([](auto, auto k) { return to_float(k / 64 * 64 + k % 7); });
  expect_same<float>([](auto, auto k) { return to_float(abs_i(k - kQuery)); });
  expect_same<float>([](auto s, auto k) { return abs_f(s) - abs_f(to_float(k)); });
  expect_same<Shifted<float>>([](auto s, auto k) { return s - to_float(abs_i(kQuery - k)) * kBias; });
}

TEST(Symbolic, ArmsOfConditionsMeet) {
  expect_same<Scaled>([](auto s, auto k) { return k < kQuery ? s : s * 2.0f; });
  expect_same<float>([](auto s, auto k) { return k < kQuery ? s : 2.0f; });
  expect_same<float>([](auto s, auto) { return s > 0.0f ? s + kBias : s; });
  expect_same<float>([](auto s, auto k) { return k >= kQuery ? to_float(k) : s + to_float(k); });
}

TEST(Symbolic, TanhOfSmallArguments) {
  for (const float factor : {1.0f, 0.02f * 0.125f, 50.0f, 7.7e-6f, -0.3f}) {
    double worst = 0;
    for (int i = 1; i <= 20000; ++i) {
      const float x = SmallArguments::kLargest * static_cast<float>(i) / 20000 / factor;
      const double exact = std::tanh(static_cast<double>(x) * factor);
      worst = std::max(worst, std::fabs((SmallArguments().tanh_(Scaled{x, factor}) - exact) / exact));
    }
    EXPECT_LE(worst, 3.2e-6) << factor;
  }
}

// What the hopper loop's check of capped scores (hopper/softmax.cuh) is built on.
TEST(Symbolic, TanhBeyondSmallArguments) {
  const auto polynomial = [](double x) {
    return static_cast<double>(SmallArguments().tanh_(Scaled{static_cast<float>(x), 1}));
  };
  EXPECT_NEAR(SmallArguments::kValueThere, std::tanh(SmallArguments::kLargest), 1e-5);
  EXPECT_NEAR(SmallArguments::kValueThere, polynomial(SmallArguments::kLargest), 1e-6);
  double last = SmallArguments::kValueThere;
  for (double x = SmallArguments::kLargest + 0.001; x < 1e3; x *= 1.002) {
    EXPECT_GT(polynomial(x), last) << x;
    EXPECT_GE(polynomial(x), std::tanh(x) * (1 - 1e-6)) << x;
    EXPECT_LE(polynomial(x) - std::tanh(x), std::pow(x, 7) / 18) << x;
    last = polynomial(x);
    // By how much an exponential of a score below is too small, of what the check takes it for.
    for (const double cap : {23.0, 30.0, 50.0, 200.0}) {
      const double missed = std::exp(-cap * std::tanh(x)) - std::exp(-cap * polynomial(x));
      EXPECT_LE(missed, cap * 3.6e-5 * std::exp(-cap * SmallArguments::kValueThere)) << cap << ", " << x;
    }
  }
  EXPECT_EQ(polynomial(INFINITY), INFINITY);
  EXPECT_EQ(polynomial(-INFINITY), -INFINITY);
}

// The polynomial of SmallArguments, in another form.
TEST(Symbolic, CappedExponents) {
  for (const float cap : {1.44f, 72.1f, 0.01f, 3e4f, 2e-6f, 1e6f}) {
    for (const float factor : {1.0f, 0.0018f, 300.0f, 1e-6f}) {
      const CappedExponent exponents(cap, factor);
      for (int i = -1000; i <= 1000; ++i) {
        const float x = SmallArguments::kLargest * static_cast<float>(i) / 1000 / factor;
        const double exact = cap * std::tanh(static_cast<double>(x) * factor);
        EXPECT_NEAR(exponents.of(x, 3.0f), exact - 3, 4e-6 * std::fabs(exact) + 4e-7)
            << cap << " " << factor << " " << x;
      }
      for (double x = SmallArguments::kLargest; x < 1e3; x *= 1.01) {
        const double plain = SmallArguments().tanh_(Scaled{static_cast<float>(x / factor), factor});
        EXPECT_NEAR(exponents.of(static_cast<float>(x / factor), 0) / cap / plain, 1, 2e-6)
            << cap << " " << factor << " " << x;
      }
      EXPECT_EQ(exponents.of(INFINITY, 3.0f), INFINITY);
      EXPECT_EQ(exponents.of(-INFINITY, 3.0f), -INFINITY);
      EXPECT_TRUE(std::isnan(exponents.of(std::numeric_limits<float>::quiet_NaN(), 3.0f)));
    }
  }
}

TEST(Symbolic, FactorsOfTanh) {
  const auto expect = [](auto value, double factor) {
    static_assert(std::is_same_v<decltype(value), Odd>);
    const double exact = std::tanh(0.3) * factor;
    EXPECT_NEAR(value, exact, 4e-6 * std::fabs(exact));
    EXPECT_NEAR(exponent(value, 1.5f, 2.0f), exact * 1.5 - 2, 8e-6 * std::fabs(exact));
  };
  const Odd tanh = SmallArguments().tanh_(Scaled{12.0f, 0.025f});
  expect(tanh, 1);
  expect(-tanh, -1);
  expect(50.0f * tanh, 50);
  expect(tanh * 3.0f / 4.0f, 0.75);
  static_assert(std::is_same_v<decltype(tanh + 1.0f), float>);
  EXPECT_NEAR(tanh + 1.0f, std::tanh(0.3) + 1, 1e-6);
}

bool small(std::initializer_list<Scaled> arguments) {
  Probe::Largest largest;
  const Probe probe = {largest};
  for (const Scaled& argument : arguments) probe.tanh_(argument);
  return probe.small();
}

TEST(Symbolic, WhichArgumentsAreSmall) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(small({}));
  EXPECT_TRUE(small({{0.34f, 1}, {-0.34f, 1}}));
  EXPECT_FALSE(small({{0.1f, 1}, {0.1f, 1}, {0.1f, 1}, {0.1f, 1}, {-0.36f, 1}, {0.1f, 1}}));
  EXPECT_TRUE(small({{17.0f, 0.02f}}));
  EXPECT_FALSE(small({{18.0f, -0.02f}}));
  for (const float x : {INFINITY, -INFINITY, 3e38f}) {
    EXPECT_FALSE(small({{x, 1}})) << x;
    EXPECT_FALSE(small({{x, 0}})) << x;
    EXPECT_FALSE(small({{0.1f, x}})) << x;
  }
  // NaN may take either way, because it stays NaN.
  for (const Scaled& argument : {Scaled{kNan, 1}, Scaled{0.1f, kNan}}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(SmallArguments().tanh_(argument))));
  }
  EXPECT_FALSE(small({{kNan, 1}, {0.6f, 1}}));
}

// Whatever the scales are: what is said to be small is computed right.
TEST(Symbolic, SmallArgumentsAreRight) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponents(-40, 40);
  int checked = 0;
  for (int i = 0; i < 200000; ++i) {
    const Scaled argument = {std::exp2(exponents(random)), std::exp2(exponents(random))};
    if (!small({argument})) continue;
    ++checked;
    const double exact = std::tanh(static_cast<double>(argument.x) * argument.factor);
    EXPECT_NEAR(SmallArguments().tanh_(argument) / exact, 1, 3.2e-6) << argument.x << " * " << argument.factor;
  }
  EXPECT_GT(checked, 10000);
}

}  // namespace
}  // namespace flashjit
