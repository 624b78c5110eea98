// blocks= in a spec: what becomes of the mask, and what is launched before it is asked.
#include "compiler/launches/block_states.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compiler/spec/spec.h"

namespace flashjit {
namespace {

std::string mask_of(const std::string& text) {
  const auto spec = parse_spec(text);
  EXPECT_TRUE(spec) << text << " " << spec.error().message;
  return spec ? print(spec->mask) : "";
}

TEST(Blocks, AreConditionsOfTheMask) {
  EXPECT_EQ(mask_of("fwd bf16 d=64 heads=8/2 blocks=64"), "block_states[b, h, q / 64, k / 64] != 0");
  EXPECT_EQ(mask_of("fwd bf16 d=64 heads=8/2 blocks=64/128/2"), "block_states[b, hk, q / 64, k / 128] != 0");
  EXPECT_EQ(mask_of("fwd bf16 d=64 heads=8/2 blocks=128/64/1"), "block_states[b, 0, q / 128, k / 64] != 0");
  EXPECT_EQ(mask_of("fwd bf16 d=64 blocks=64/64/1 mask=\"k <= q\""),
            "block_states[b, 0, q / 64, k / 64] == 2 | block_states[b, 0, q / 64, k / 64] == 1 & k <= q");
}

TEST(Blocks, ArePrintedAndResolvedAgain) {
  for (const std::string text : {"fwd bf16 d=64 heads=8/2 blocks=64", "fwd bf16 d=64 heads=8/2 blocks=64/128",
                                 "fwd bf16 d=64 heads=8/2 blocks=64/64/2 mask=\"causal\"",
                                 "bwd bf16 d=64 heads=8 blocks=192/128/1 score=\"s * c\" params=\"c: fp32\""}) {
    auto spec = parse_spec(text);
    ASSERT_TRUE(spec) << text;
    EXPECT_EQ(print(*spec), text);
    EXPECT_EQ(given_params(*spec).size(), spec->declared.size());
    const std::string mask = print(spec->mask), meant = meaning(*spec);
    ASSERT_TRUE(validate(*spec)) << text;
    EXPECT_EQ(print(spec->mask), mask);
    EXPECT_EQ(meaning(*spec), meant);
    EXPECT_EQ(spec->params.size(), spec->declared.size() + 1);
  }
  AttentionSpec built = *parse_spec("fwd bf16 d=64 heads=8");
  built.mask = Expr::variable(Variable::K) <= Expr::variable(Variable::Q);
  built.blocks = {.q = 64, .k = 64};
  ASSERT_TRUE(validate(built));
  EXPECT_EQ(print(built), "fwd bf16 d=64 heads=8 blocks=64 mask=\"k <= q\"");
  EXPECT_NE(meaning(built), meaning(*parse_spec("fwd bf16 d=64 heads=8 mask=\"k <= q\"")));
}

TEST(Blocks, AreLookedAtBeforeTheMaskIsAsked) {
  const auto launches = [](const std::string& text, const char* target) {
    const auto plan = make_plan(*parse_spec(text), **find_target(target));
    EXPECT_TRUE(plan) << text << " " << plan.error().message;
    std::vector<std::string> entries;
    if (plan) {
      for (const KernelLaunch& launch : plan->before) entries.push_back(launch.entry);
      EXPECT_EQ(plan->block_states < 0, describe_block_states(*plan).empty());
    }
    return entries;
  };
  using Entries = std::vector<std::string>;
  const std::string states = "flashjit_block_states", lists = "flashjit_tile_lists", append = "flashjit_append";
  for (const char* operation : {"fwd", "bwd"}) {
    const std::string dense = std::string(operation) + " bf16 d=128 heads=8 ";
    EXPECT_EQ(launches(dense + "blocks=128", "sm_90a"), (Entries{states, lists}));
    EXPECT_EQ(launches(dense + "blocks=64 mask=\"causal\"", "sm_90a"), (Entries{states, lists}));
    EXPECT_EQ(launches(dense + "blocks=128 k_len<=1024", "sm_90a"), (Entries{states}));
  }
  EXPECT_EQ(launches("fwd bf16 d=128 heads=8 layout=paged(64) blocks=128 append", "sm_90a"),
            (Entries{append, states, lists}));
  EXPECT_EQ(launches("fwd bf16 d=128 heads=8 layout=paged(64) blocks=64 q_len=1", "sm_90a"), (Entries{states}));
  EXPECT_EQ(launches("fwd bf16 d=64 heads=8 blocks=64", "sm_80"), (Entries{states, lists}));
  EXPECT_EQ(launches("fwd bf16 d=64 heads=8 blocks=64", "x86-64-v3"), Entries{});
}

TEST(Blocks, HaveAByteForEachPair) {
  const auto plan = make_plan(*parse_spec("fwd bf16 d=128 heads=8/4 blocks=64/128/4"), **find_target("sm_90a"));
  ASSERT_TRUE(plan);
  const WorkspaceBuffer& states = plan->workspace[static_cast<std::size_t>(plan->block_states)];
  EXPECT_EQ(bytes_of(states, {.batch = 3, .q_len = 129, .k_len = 129}), 3 * 4 * 3 * 2);
  EXPECT_EQ(bytes_of(states, {.batch = 3, .q_len = 128, .k_len = 0}), 0);
  const BlockCounts counts = block_counts(plan->spec.blocks, {.batch = 3, .q_len = 129, .k_len = 129});
  EXPECT_EQ(counts.q, 3);
  EXPECT_EQ(counts.k, 2);
  const KernelLaunch& launch = plan->before.front();
  EXPECT_EQ(items_of(launch.grid, {.batch = 3, .q_len = 129, .k_len = 129}), 3 * 4 * 3);
}

}  // namespace
}  // namespace flashjit
