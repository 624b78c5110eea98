// V of 8 bits with its keys along rows: the launches before the loop that make it so, or rows of it.
#include "compiler/values.h"

#include <gtest/gtest.h>

#include <string>

#include "compiler/choice/cost_model.h"
#include "compiler/spec/target.h"
#include "templates/hopper/layout.h"

namespace flashjit {
namespace {

Plan planned(const std::string& text, const char* target, const char* pins) {
  const auto spec = parse_spec(text);
  EXPECT_TRUE(spec) << text;
  auto plan = make_plan(*spec, **find_target(target), *parse_schedule(pins));
  EXPECT_TRUE(plan) << text << ": " << plan.error().message;
  return *std::move(plan);
}

constexpr CallSizes kSizes = {.batch = 3, .q_len = 5, .k_len = 300, .q_tokens = 15, .k_tokens = 900};

TEST(Values, AreTransposedByALaunchOrTheLoop) {
  const Plan loop = planned("fwd e4m3 d=64 heads=8/2", "sm_90a", "family=hopper,transpose=loop");
  EXPECT_FALSE(loop.before || loop.launches[0].overlaps || !loop.workspace.empty());
  for (const bool given : {false, true}) {
    const std::string spec = std::string("fwd e4m3 d=64 heads=8/2") + (given ? " v_transposed" : "");
    const Plan plan = planned(spec, "sm_90a", "family=hopper,transpose=launch,tile_kv=128");
    ASSERT_TRUE(plan.before);
    EXPECT_TRUE(plan.launches[0].overlaps);
    EXPECT_EQ(plan.launches[0].buffers, plan.before->buffers);
    EXPECT_EQ(plan.value_rows, -1) << "the loop does not read V";
    EXPECT_EQ(items_of(plan.before->grid, kSizes), 3 * 3 * 2) << "tiles of keys";
    EXPECT_EQ(bytes_of(plan.workspace, kSizes), 3 * 3 * 2 * 64 * 128);
    EXPECT_LE(plan.before->smem_bytes, plan.smem_bytes());
  }
}

TEST(Values, OfPackedSequencesHaveTilesOfTheirOwn) {
  const Plan plan = planned("fwd e4m3 d=128 layout=packed", "sm_90a", "family=hopper,transpose=launch,tile_kv=96");
  EXPECT_EQ(items_of(plan.before->grid, kSizes), 900 / 96 + 3);
  EXPECT_EQ(bytes_of(plan.workspace, kSizes), (10 + 3) * 128 * 128) << "rows of shared memory have 128 bytes";
}

TEST(Values, AreMadeRowsOfForLoopsThatReadRows) {
  const std::pair<const char*, const char*> rows[] = {{"sm_90a", "family=hopper,transpose=loop"},
                                                      {"sm_90a", "family=naive"},
                                                      {"sm_89", "family=sync_narrow"},
                                                      {"sm_80", "family=sync"}};
  for (const auto& [target, pins] : rows) {
    SCOPED_TRACE(std::string(target) + pins);
    const Plan without = planned("fwd e4m3 d=80 heads=8/2", target, pins),
               plan = planned("fwd e4m3 d=80 heads=8/2 v_transposed", target, pins);
    ASSERT_TRUE(plan.before && !without.before);
    ASSERT_EQ(plan.workspace.size(), without.workspace.size() + 1);
    EXPECT_EQ(plan.value_rows, static_cast<int>(without.workspace.size()));
    EXPECT_EQ(bytes_of(plan.workspace.back(), kSizes), 900 * 2 * 80);
    EXPECT_EQ(items_of(plan.before->grid, kSizes), 3 * 5 * 2) << "of 64 keys";
    EXPECT_NE(describe_value_rows(plan).find("160 bytes for a token"), std::string::npos);
    EXPECT_EQ(describe_value_rows(without), "");
  }
  EXPECT_FALSE(planned("fwd e4m3 d=64 v_transposed", "x86-64-v3", "").before) << "hosts launch nothing";
}

TEST(Values, OfALaunchTakeTime) {
  const Shape shape = {4, 4096, 4096};
  const auto latency = [&](const char* pins) {
    return roofline(planned("fwd e4m3 d=128 heads=16", "sm_90a", pins), shape).predicted.latency;
  };
  EXPECT_GT(latency("family=hopper,transpose=launch"), latency("family=hopper,transpose=loop") + 5);
}

}  // namespace
}  // namespace flashjit
