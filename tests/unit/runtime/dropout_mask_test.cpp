// The mask that callers can see is that of the reference, in whatever order its tensor has its dimensions.
#include <gtest/gtest.h>

#include "autotune/reference/dropout.h"
#include "flashjit/flashjit.hpp"

namespace flashjit {
namespace {

TEST(DropoutMask, IsThatOfTheReference) {
  constexpr std::int64_t kBatch = 2, kHeads = 3, kQueries = 21, kKeys = 37;
  constexpr std::int64_t kHeadStep = kKeys * kQueries + 1, kBatchStep = kHeads * kHeadStep;
  constexpr std::uint8_t kUntouched = 9;
  for (const double p : {0.004, 0.1, 0.9}) {
    std::vector<std::uint8_t> bytes(kBatch * kBatchStep, kUntouched);
    const Tensor kept{bytes.data(), "u8", {kBatch, kHeads, kQueries, kKeys}, {kBatchStep, kHeadStep, 1, kQueries}};
    const auto done = dropout_mask(p, -12, std::int64_t{1} << 50, kept);
    ASSERT_TRUE(done) << done.error().message;
    const reference::Dropout dropout(p, static_cast<std::uint64_t>(-12), std::uint64_t{1} << 50);
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t q = 0; q < kQueries; ++q) {
          for (std::int64_t k = 0; k < kKeys; ++k) {
            std::uint8_t& byte = bytes[static_cast<std::size_t>(b * kBatchStep + h * kHeadStep + k * kQueries + q)];
            ASSERT_EQ(byte, dropout.drops({.q = q, .k = k, .b = b, .h = h}) ? 0 : 1) << b << h << " " << q << " " << k;
            byte = kUntouched;
          }
        }
      }
    }
    for (const std::uint8_t byte : bytes) EXPECT_EQ(byte, kUntouched);
  }
}

TEST(DropoutMask, WrongOnesAreRefused) {
  std::uint8_t byte = 0;
  const auto message = [&](double p, const Tensor& kept) {
    const auto done = dropout_mask(p, 0, 0, kept);
    return done ? std::string() : done.error().message;
  };
  const Tensor right{&byte, "u8", {1, 1, 1, 1}, {}};
  EXPECT_EQ(message(0.1, right), "");
  EXPECT_EQ(message(1, right).rfind("dropout: 1 is outside", 0), 0u);
  EXPECT_EQ(message(0.001, right).rfind("dropout: 0.001 is nearest to 0", 0), 0u);
  EXPECT_EQ(message(0.1, {}).rfind("kept: missing", 0), 0u);
  EXPECT_EQ(message(0.1, {&byte, "fp32", {1, 1, 1, 1}, {}}).rfind("kept.dtype: 'fp32'", 0), 0u);
  EXPECT_EQ(message(0.1, {&byte, "u8", {1, 1, 1}, {}}).rfind("kept.shape: 3 dimensions", 0), 0u);
  EXPECT_EQ(message(0.1, {&byte, "u8", {1, 1, 1, std::int64_t{1} << 31}, {}}).rfind("kept.shape: 2147483648", 0), 0u);
}

}  // namespace
}  // namespace flashjit
