// Object files of host kernels: the same bytes each time, and nothing else is linked.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "tests/host/host_case.h"

namespace flashjit {
namespace {

class HostObject : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend()) GTEST_SKIP() << "built without the host backend (LLVM 19)";
    const auto spec = parse_spec("fwd fp32 d=32 heads=2 mask=\"causal\"");
    ASSERT_TRUE(spec);
    auto made = make_plan(*spec, *runnable_targets().front());
    ASSERT_TRUE(made);
    plan = std::move(*made);
    auto compiled = backend()->compile(*plan, false);
    ASSERT_TRUE(compiled) << compiled.error().message;
    object = std::move(*compiled);
  }
  bool links(const std::vector<std::uint8_t>& bytes) const {
    return static_cast<bool>(backend()->link(*plan, false, bytes));
  }
  std::optional<Plan> plan;
  std::vector<std::uint8_t> object;
};

TEST_F(HostObject, IsTheSameEachTimeAndLinksMoreThanOnce) {
  const auto again = backend()->compile(*plan, false);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, object);
  EXPECT_TRUE(links(object));
  EXPECT_TRUE(links(object));
}

TEST_F(HostObject, WhatIsNoneIsRefusedAndNothingIsPrinted) {
  testing::internal::CaptureStderr();
  for (std::size_t length = 0; length < object.size(); length += 97)
    EXPECT_FALSE(links({object.begin(), object.begin() + static_cast<std::ptrdiff_t>(length)})) << length;
  EXPECT_FALSE(links(std::vector<std::uint8_t>(5000, 0xab)));
  // The header's class, byte order, type (a shared library) and machine (AArch64).
  constexpr std::array<std::pair<std::size_t, std::uint8_t>, 4> kBytes = {{{4, 1}, {5, 2}, {16, 3}, {18, 183}}};
  for (const auto& [at, value] : kBytes) {
    std::vector<std::uint8_t> foreign = object;
    foreign[at] = value;
    EXPECT_FALSE(links(foreign)) << "byte " << at;
  }
  const auto naive = backend()->compile(*plan, true);
  ASSERT_TRUE(naive);
  EXPECT_FALSE(links(*naive)) << "it has other functions";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace flashjit
