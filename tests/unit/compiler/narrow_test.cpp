// New rows of a cache of 8 bits: what the device makes of numbers is what the formats say.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include <gtest/gtest.h>

#include "compiler/spec/half.h"
#include "templates/kernel_config.h"

#define __device__
namespace device {
namespace {
unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
using std::fmaxf, std::fminf, std::max;
}  // namespace
namespace flashjit {
using ::flashjit::Narrow;
}
#include "templates/append/narrow.cuh"
}  // namespace device
#undef __device__

namespace flashjit {
namespace {

template <Narrow cache>
void expect_as(Dtype dtype, float x) {
  std::uint32_t wanted = 0;
  store_float(dtype, &wanted, 0, x);
  const unsigned narrowed = device::flashjit::appending::narrowed<cache>(x);
  EXPECT_EQ(narrowed, wanted) << name(dtype) << " of " << x;
}

template <Narrow cache>
void expect_all(Dtype dtype) {
  for (const float x : {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 0x1p-149f, 1e38f, -1e38f}) expect_as<cache>(dtype, x);
  // Every number of the type, the middles between two, and what is beside all these; and beyond the largest.
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code), next = static_cast<std::uint8_t>(code + 1);
    const float x = load_float(dtype, &byte, 0), y = load_float(dtype, &next, 0);
    for (const float at : {x, (x + y) / 2, x * 1.2f}) {
      for (const float beside : {at, std::nextafter(at, INFINITY), std::nextafter(at, -INFINITY)})
        expect_as<cache>(dtype, beside);
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 100000; ++i) expect_as<cache>(dtype, std::bit_cast<float>(static_cast<std::uint32_t>(random())));
}

TEST(Narrow, NumbersAreThoseOfTheFormats) {
  expect_all<Narrow::e4m3>(Dtype::E4M3);
  expect_all<Narrow::e5m2>(Dtype::E5M2);
  expect_all<Narrow::int8>(Dtype::I8);
}

}  // namespace
}  // namespace flashjit
