// What is asked for: texts are parsed once, and a plan of the parsed form is that of the texts.
#include "runtime/compile/request.h"

#include <gtest/gtest.h>

namespace flashjit {
namespace {

constexpr char kRequested[] = "fwd  bf16 heads=4/2 d=64 layout=bshd mask=\"causal\"";

TEST(Request, HoldsTheCanonicalTextAndTheDevicesSize) {
  const auto row = Request::parse(kRequested, "sm_90a", "tile_q=128"),
             device = Request::parse(kRequested, "sm_90a", "", 99);
  ASSERT_TRUE(row && device);
  EXPECT_EQ(row->text, "fwd bf16 d=64 heads=4/2 mask=\"causal\"");
  EXPECT_EQ(row->text, print(row->spec));
  EXPECT_EQ(row->target.name, "sm_90a");
  EXPECT_EQ(row->target.sm_count, (*find_target("sm_90a"))->sm_count);
  EXPECT_EQ(device->target.sm_count, 99);
  EXPECT_EQ(print(row->pins), "tile_q=128");
  EXPECT_EQ(device->pins, Schedule());
}

TEST(Request, NamesTheFirstTextThatDoesNotParse) {
  const struct {
    const char *spec, *target, *pins, *words;
  } rows[] = {{"fwd bf16 d=63 heads=1", "sm_1", "tile_q=x", "d: 63"},
              {kRequested, "sm_1", "tile_q=x", "sm_1"},
              {kRequested, "sm_80", "tile_q=x", "tile_q"}};
  for (const auto& row : rows) {
    const auto request = Request::parse(row.spec, row.target, row.pins);
    ASSERT_FALSE(request) << row.words;
    EXPECT_EQ(request.error().kind, ErrorKind::Invalid);
    EXPECT_NE(request.error().message.find(row.words), std::string::npos) << request.error().message;
  }
}

TEST(Request, WhatIsLegalButNotComputedIsRefusedByThePlan) {
  const auto request = Request::parse("fwd bf16 d=64 heads=4 out=e5m2", "sm_80", "");
  ASSERT_TRUE(request) << request.error().message;
  const auto plan = plan_spec(*request);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().kind, ErrorKind::Unsupported);
}

TEST(Request, APlanHonoursThePins) {
  const auto request = Request::parse(kRequested, "sm_90a", "family=sync,tile_q=64", 7);
  ASSERT_TRUE(request);
  const auto plan = plan_spec(*request);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->schedule.family, find_family("sync"));
  EXPECT_EQ(plan->schedule.tile_q, 64);
  EXPECT_EQ(plan->target.sm_count, 7);
}

}  // namespace
}  // namespace flashjit
