// What calls have of dropout: the two numbers that they give, and the mask that callers can see.
#include <gtest/gtest.h>

#include <limits>

#include "autotune/reference/dropout.h"
#include "flashjit/flashjit.hpp"
#include "tests/unit/runtime/calls.h"

namespace flashjit {
namespace {

void expect_refused(const Plan& plan, const Arguments& arguments, const std::string& begin) {
  const auto params = fill(plan, arguments);
  ASSERT_FALSE(params) << begin;
  EXPECT_EQ(params.error().message.rfind(begin, 0), 0u) << params.error().message << "\ninstead of " << begin;
}

// Tensors are passed on unread: a captured graph finds in them what was written there since.
TEST(DropoutNumbers, AreTensorsOrValues) {
  const Plan plan = plan_of("fwd bf16 d=64 heads=4/2 dropout=0.1");
  Arguments a = dense();
  expect_refused(plan, a, "seed: missing; this spec needs it");
  a.params["seed"] = {address(0x90000), "i64", {1}, {}};
  expect_refused(plan, a, "offset: missing; this spec needs it");
  a.scalars["offset"] = -9;
  const auto params = fill(plan, a);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->seed_at, address(0x90000));
  EXPECT_EQ(params->offset_at, nullptr);
  EXPECT_EQ(params->offset, -9);
  a.scalars["seed"] = 7;
  expect_refused(plan, a, "seed: given twice");
  a.params.erase("seed");
  EXPECT_EQ(fill(plan, a)->seed, 7);
  for (const double wrong : {0.5, 0x1p60, std::numeric_limits<double>::quiet_NaN()}) {
    a.scalars["seed"] = wrong;
    expect_refused(plan, a, "scalars.seed: ");
  }
  a.scalars["seed"] = 7;
  expect_refused(plan_of("fwd bf16 d=64 heads=4/2"), a, "seed: given, and the spec does not ask for it; add dropout=P");
}

// In whatever order its tensor has its dimensions.
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
