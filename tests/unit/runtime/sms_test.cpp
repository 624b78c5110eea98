// Limits of the SMs that a call may have.
#include <fmt/format.h>

#include "tests/unit/runtime/launch_fixture.h"

namespace flashjit {
namespace {

using Sms = LaunchTest;

// The device has 21 SMs.
TEST_F(Sms, PersistentLoopsRunOnNoMoreSmsThanACallAllows) {
  load(persistent());
  const auto blocks = [&](std::int64_t sms) {
    arguments.sms = sms;
    record.config.grid_x = 0;
    EXPECT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr)) << sms;
    return record.config.grid_x;
  };
  EXPECT_EQ(blocks(0), 21u);
  EXPECT_EQ(blocks(21), 21u);
  EXPECT_EQ(blocks(13), 13u);
  EXPECT_EQ(blocks(1), 1u);
  record.launches = 0;
  for (const std::int64_t wrong : {-1, 22}) {
    arguments.sms = wrong;
    expect_refused(fmt::format("sms: {} is outside 0..21", wrong));
  }
}

TEST_F(Sms, ALoopWithABlockForEachTileRefusesALimitOfSms) {
  arguments.sms = 5;
  expect_refused("sms: 5, and the loop of this kernel");
  arguments.sms = 0;
  EXPECT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
}

// A kernel without launches, for a GPU of 21 SMs.
Compiled on_21_sms() {
  Compiled compiled;
  compiled.plan.spec = *parse_spec("fwd bf16 d=64 heads=4/2");
  compiled.plan.target.gpu = true;
  compiled.plan.target.sm_count = 21;
  return compiled;
}

TEST_F(Sms, BlocksThatWorkTogetherNeedSms) {
  Compiled compiled = on_21_sms();
  compiled.plan.launches = {{.entry = "flashjit_forward",
                             .threads = 128,
                             .grid = {.queries = 4, .heads = 2, .blocks_per_sm = 2, .together = 6, .cluster = 2}}};
  load(compiled);
  arguments.lse = {};
  arguments.params.clear();
  arguments.scalars.clear();
  arguments.sms = 2;
  expect_refused("sms: 2 is below 3");
  arguments.sms = 3;
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
  EXPECT_EQ(record.config.grid_x, 6u);
  arguments.sms = 4;
  ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
  EXPECT_EQ(record.config.grid_x, 8u);
}

// It would wait on the SMs that are left to others.
TEST_F(Sms, NoLaunchBeginsWhileALimitedOneRuns) {
  Compiled compiled = on_21_sms();
  compiled.plan.launches = {
      {.entry = "flashjit_forward", .threads = 128, .grid = {.queries = 4, .heads = 2, .persistent = true}},
      {.entry = "product", .threads = 128, .grid = {.queries = 4, .heads = 2}, .overlaps = true}};
  load(compiled);
  arguments.lse = {};
  arguments.params.clear();
  arguments.scalars.clear();
  for (const auto& [sms, attributes] : {std::pair(0, 1u), {21, 1u}, {13, 0u}}) {
    arguments.sms = sms;
    ASSERT_TRUE(static_cast<Kernel&>(*kernel).run(arguments, nullptr));
    EXPECT_EQ(record.config.attribute_count, attributes) << sms;
  }
}

}  // namespace
}  // namespace flashjit
