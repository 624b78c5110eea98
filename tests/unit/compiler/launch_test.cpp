// How a call is cut into items, and how blocks share these: evenly, or as teams that have whole items; and the launches
// before those of a family that read V of 8 bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "compiler/choice/cost_model.h"
#include "compiler/launch.h"
#include "compiler/plan.h"
#include "compiler/spec/target.h"
#include "compiler/launches/values.h"
#include "compiler/launches/wide_rows.h"
#include "templates/decode/layout.h"
#include "templates/hopper/layout.h"

namespace flashjit {
namespace {

// As an H200 says of a kernel that fills an SM; eight heads, tiles of four queries and 16 keys.
constexpr ResidentClusters kH200 = {132, 66, 32, 15};

GridRule rule(bool even) {
  GridRule rule = {.queries = 4, .keys = 16, .heads = 8, .blocks_per_sm = 1};
  rule.team = {.most = 8,
               .least_keys = 128,
               .enough_blocks = 40,
               .many_keys = 4096,
               .most_keys = 1024,
               .most_uneven_keys = 512,
               .even = even};
  return rule;
}

CallSizes sizes(std::int64_t batch, std::int64_t keys, std::int64_t queries = 1) {
  return {.batch = batch, .q_len = queries, .k_len = keys};
}

void expect_teams(const Teams& teams, int blocks, int count, int items) {
  EXPECT_EQ(teams.blocks, blocks);
  EXPECT_EQ(teams.count, count);
  EXPECT_EQ(teams.items, items);
}

// Ranges are of heads side by side; where heads do not lie so, of as many as leave no SM without one.
TEST(Items, EverySmHasARangeWhereHeadsComeBeforeTokens) {
  const auto side = [](std::string_view layout, const Target& target) {
    const auto spec = parse_spec(fmt::format("fwd bf16 d=128 heads=32/32 q_len=1 layout={}", layout));
    const auto plan = make_plan(*spec, target, *parse_schedule("family=decode,blocks_per_sm=1"));
    EXPECT_TRUE(plan) << target.name << ": " << plan.error().message;
    return plan ? heads_side_by_side(plan->config) : 0;
  };
  for (const Target& target : targets()) {
    if (!target.gpu) continue;
    const int heads = side("bhsd", target);
    EXPECT_TRUE(heads > 0 && target.sm_count % heads == 0) << target.name << ": " << heads;
  }
  const Target& h200 = **find_target("sm_90a");
  EXPECT_EQ(side("bhsd", h200), 4);
  EXPECT_EQ(side("bshd", h200), 8);
  EXPECT_EQ(side("paged(64)", h200), 8);
}

// Four sequences of 70, 1, 0 and 129 queries, and 5, 33, 200 and 0 keys, in tiles of 64 and 128: none needs more numbers
// than these, whatever the lengths are.
TEST(Items, OfPackedSequencesAreNumbered) {
  const CallSizes call = {.batch = 4, .q_len = 129, .k_len = 200, .q_tokens = 200, .k_tokens = 238};
  EXPECT_EQ(items_of({.queries = 64, .heads = 3, .numbered = true}, call), 3 * (3 + 4));
  EXPECT_EQ(items_of({.keys = 128, .heads = 2, .numbered = true}, call), 2 * (1 + 4));
  const CallSizes no_keys = {.batch = 4, .q_len = 129, .k_len = 0, .q_tokens = 200, .k_tokens = 0};
  EXPECT_EQ(items_of({.queries = 64, .heads = 3, .numbered = true}, no_keys), 3 * (3 + 4));
  EXPECT_EQ(items_of({.keys = 128, .heads = 2, .numbered = true}, no_keys), 0);
}

GridRule cut(int heads = 1, bool uneven = false, int cluster = 1) {
  return {.keys = 128,
          .heads = 2 * cluster,
          .cluster = cluster,
          .part = {.queries = 64, .heads = heads, .most_items = 128, .uneven = uneven}};
}

void expect_parts(const Parts& parts, int count, int tiles) {
  EXPECT_EQ(parts.count, count);
  EXPECT_EQ(parts.tiles, tiles);
}

// Of 200 keys two tiles of two heads, and 100 tiles of queries: four items for 132 SMs.
TEST(Parts, KeepAllSmsBusy) {
  const Parts parts = parts_of(cut(), sizes(1, 200, 6400), 132);
  EXPECT_LE(4 * parts.count, 132);
  EXPECT_GE(4 * parts.count, 80);
  EXPECT_GE(parts.count * parts.tiles, 100) << "some queries are nobody's";
  EXPECT_LT((parts.count - 1) * parts.tiles, 100) << "a part has none";
}

TEST(Parts, OfManyItemsAreWhole) {
  expect_parts(parts_of(cut(), sizes(64, 128, 6400), 132), 1, 1 << 30);   // 128 items: nearly all SMs have one
  expect_parts(parts_of(cut(), sizes(100, 128, 6400), 132), 1, 1 << 30);  // more than the workspace has sums for
  EXPECT_EQ(parts_of(cut(), sizes(40, 128, 6400), 132).count, 3) << "80 items: 240 parts of a third, for two rounds";
}

TEST(Parts, OfFewStepsAreNotWorthIt) {
  expect_parts(parts_of(cut(), sizes(1, 200, 128), 132), 1, 1 << 30);
  EXPECT_GT(parts_of(cut(16), sizes(1, 200, 128), 132).count, 1) << "16 heads are 16 steps for each query tile";
  expect_parts(parts_of(cut(), sizes(1, 200, 0), 132), 1, 1 << 30);
  expect_parts(parts_of(cut(), sizes(0, 200, 64), 132), 1, 1 << 30);
  expect_parts(parts_of({.keys = 128, .heads = 2}, sizes(1, 200, 6400), 132), 1, 1 << 30);
}

// Of the keys: 32 items of 128 tiles for 132 SMs are four times as many; more SMs than 16 times as many have something to do
// get no more parts, nor do parts get fewer tiles than it takes to put them together.
TEST(Parts, OfKeysKeepAllSmsBusy) {
  const GridRule rule = {
      .queries = 128,
      .heads = 32,
      .part = {.keys = 128, .most_items = 132, .most_parts = 16, .most_of_all = 264, .beside = 2, .sums = 3}};
  expect_parts(parts_of(rule, sizes(1, 16384, 128), 132), 4, 32);
  expect_parts(parts_of(rule, sizes(1, 512, 128), 132), 1, 1 << 30);
  expect_parts(parts_of(rule, sizes(1, 16384, 4096), 132), 1, 1 << 30);
  GridRule few = rule;
  few.heads = 1;
  EXPECT_EQ(parts_of(few, sizes(1, 65536, 128), 132).count, 16);
}

// A mask lets some tiles of keys see few queries: those with most are cut sooner.
TEST(Parts, OfUnevenItemsAreSmaller) { EXPECT_GT(parts_of(cut(1, true), sizes(40, 128, 6400), 132).count, 3); }

TEST(Parts, ClustersCountOnce) {
  expect_parts(parts_of(cut(1, false, 2), sizes(1, 200, 6400), 132), parts_of(cut(), sizes(1, 200, 6400), 66).count,
               parts_of(cut(), sizes(1, 200, 6400), 66).tiles);
}

// Sums in any order are what `fast` allows; gradients of parameters have sums of their own for each tile of keys.
TEST(Parts, AreOfFastGradientsAlone) {
  const auto cuts = [](std::string_view words, std::string_view target) {
    const auto spec = parse_spec(fmt::format("bwd bf16 d=128 heads=8/2 {}", words));
    EXPECT_TRUE(spec) << words << ": " << spec.error().message;
    const auto plan = make_plan(*spec, **find_target(target), {});
    EXPECT_TRUE(plan) << words << ": " << plan.error().message;
    return std::ranges::any_of(plan->launches, [](const KernelLaunch& launch) { return launch.grid.part.queries > 0; });
  };
  for (const std::string_view target : {"sm_90a", "sm_80"}) {
    EXPECT_TRUE(cuts("", target)) << target;
    EXPECT_TRUE(cuts("mask=\"causal\" dropout=0.1", target)) << target;
    EXPECT_FALSE(cuts("numerics=deterministic", target)) << target;
    EXPECT_FALSE(cuts("score=\"alibi\" grads=\"slope\"", target)) << target;
  }
  EXPECT_FALSE(cuts("layout=packed", "sm_90a")) << "a warp that finds tiles has no registers for it";
}

TEST(Workspace, OfMoreThanItsMostIsNone) {
  const WorkspaceBuffer sums = {"sums", "float", 8, {{&CallSizes::batch}, {&CallSizes::k_len, 128, true}}, 8 * 4};
  EXPECT_EQ(bytes_of(sums, sizes(2, 256)), 8 * 4);
  EXPECT_EQ(bytes_of(sums, sizes(5, 128)), 0);
}

TEST(Workspace, OfNumberedTilesHasOneMoreForEachSequence) {
  const CallSizes call = {.batch = 4, .q_len = 129, .k_len = 200, .q_tokens = 200, .k_tokens = 238};
  const WorkspaceBuffer tiles = {
      "tiles",
      "float",
      1024,
      {{.size = &CallSizes::q_tokens, .multiple = 64, .tiles = true, .more = &CallSizes::batch}}};
  EXPECT_EQ(bytes_of(tiles, call), 1024 * (4 + 4));
}

TEST(Teams, AreAsLargeAsFitAtOnce) {
  expect_teams(teams_of(rule(true), sizes(1, 8192), kH200), 8, 8, 8);
  expect_teams(teams_of(rule(true), sizes(2, 8192), kH200), 4, 16, 8);  // 15 clusters of 8 are one too few
  expect_teams(teams_of(rule(true), sizes(8, 8192), kH200), 2, 64, 8);
  expect_teams(teams_of(rule(true), sizes(16, 8192), kH200), 1, 128, 8);
}

TEST(Teams, HaveNoBlockWithoutKeys) {
  expect_teams(teams_of(rule(true), sizes(1, 128), kH200), 1, 8, 8);
  expect_teams(teams_of(rule(true), sizes(1, 129), kH200), 2, 8, 8);
  expect_teams(teams_of(rule(true), sizes(1, 1000), kH200), 8, 8, 8);
}

TEST(Teams, OfABlockTakeSeveralItemsWhereTheseKeepAllSmsBusy) {
  expect_teams(teams_of(rule(true), sizes(64, 8192), kH200), 1, 128, 8);  // four each
  expect_teams(teams_of(rule(true), sizes(20, 8192), kH200), 0, 0, 0);    // 160 items: 80 blocks with two each
}

TEST(Teams, LeaveLongCallsToAllSms) {
  expect_teams(teams_of(rule(true), sizes(1, 32768), kH200), 8, 8, 8);  // 64 blocks
  expect_teams(teams_of(rule(true), sizes(1, 32769), kH200), 0, 0, 0);
  expect_teams(teams_of(rule(true), sizes(8, 1 << 20), kH200), 2, 64, 8);  // 128 blocks
  GridRule few = rule(true);
  few.team.enough_blocks = 65;
  expect_teams(teams_of(few, sizes(1, 8192), kH200), 8, 8, 8);
  expect_teams(teams_of(few, sizes(1, 8193), kH200), 0, 0, 0);
}

TEST(Teams, OfUnevenSequencesAreForFewKeys) {
  expect_teams(teams_of(rule(false), sizes(2, 2048), kH200), 4, 16, 8);
  expect_teams(teams_of(rule(false), sizes(2, 2049), kH200), 0, 0, 0);
  expect_teams(teams_of(rule(false), sizes(64, 128), kH200), 0, 0, 0);
  expect_teams(teams_of(rule(false), sizes(1, 32768), kH200), 8, 8, 8);  // one is as long as itself
}

TEST(Teams, AreNoneWithoutClustersOrItems) {
  GridRule none = rule(true);
  none.team.most = 1;
  expect_teams(teams_of(none, sizes(1, 1024), kH200), 0, 0, 0);
  expect_teams(teams_of(rule(true), sizes(0, 1024), kH200), 0, 0, 0);
  expect_teams(teams_of(rule(true), sizes(1, 1024), {}), 0, 0, 0);
}

TEST(Teams, CountTilesOfQueries) { expect_teams(teams_of(rule(true), sizes(1, 1024, 5), kH200), 4, 16, 16); }

// ---- parts of numerics=batch_invariant: their sizes, and the room for them ----

KernelConfig config_with(int warps, int tile_kv) {
  KernelConfig c = {};
  c.decode.warps = warps;
  c.tile_kv = tile_kv;
  return c;
}

int parts_of(const KernelConfig& c, int keys) {
  const int shift = part_shift(c, round_up(keys, c.tile_kv));
  return (keys + (1 << shift) - 1) >> shift;
}

TEST(FixedParts, OnePerBlockOfATeamAndThenMoreAndLonger) {
  const KernelConfig c = config_with(8, 16);
  for (const int keys : {1024, 2048, 4096, 8192}) EXPECT_EQ(parts_of(c, keys), 1 << kFewPartsShift) << keys;
  EXPECT_EQ(parts_of(c, 100), 1);
  EXPECT_EQ(parts_of(c, 65536), 64);
  EXPECT_EQ(part_shift(c, 131072), kLongPartShift + 1);
}

TEST(FixedParts, ThereIsRoomForThoseOfFewerKeys) {
  for (const auto& [warps, tile_kv] : {std::pair{8, 16}, {8, 32}, {4, 16}, {16, 32}}) {
    const KernelConfig c = config_with(warps, tile_kv);
    int most = 0;
    for (int keys = 1; keys <= 300000; keys += keys < 3000 ? 1 : 509) {
      most = std::max(most, parts_of(c, keys));
      ASSERT_GE(most_parts(c, keys), most) << keys << " keys, " << warps << " warps of " << tile_kv;
    }
  }
}

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
  EXPECT_TRUE(loop.before.empty() && !loop.launches[0].overlaps && loop.workspace.empty());
  for (const bool given : {false, true}) {
    const std::string spec = std::string("fwd e4m3 d=64 heads=8/2") + (given ? " v_transposed" : "");
    const Plan plan = planned(spec, "sm_90a", "family=hopper,transpose=launch,tile_kv=128");
    ASSERT_FALSE(plan.before.empty());
    EXPECT_TRUE(plan.launches[0].overlaps);
    EXPECT_EQ(plan.launches[0].buffers, plan.before.front().buffers);
    EXPECT_EQ(plan.value_rows, -1) << "the loop does not read V";
    EXPECT_EQ(items_of(plan.before.front().grid, kSizes), 3 * 3 * 2) << "tiles of keys";
    EXPECT_EQ(bytes_of(plan.workspace, kSizes), 3 * 3 * 2 * 64 * 128);
    EXPECT_LE(plan.before.front().smem_bytes, plan.smem_bytes());
  }
}

TEST(Values, OfPackedSequencesHaveTilesOfTheirOwn) {
  const Plan plan = planned("fwd e4m3 d=128 layout=packed", "sm_90a", "family=hopper,transpose=launch,tile_kv=96");
  EXPECT_EQ(items_of(plan.before.front().grid, kSizes), 900 / 96 + 3);
  EXPECT_EQ(bytes_of(plan.workspace, kSizes), (10 + 3) * 128 * 128) << "rows of shared memory have 128 bytes";
}

// Pieces of a product have the width of S, and the last reaches behind V: there must be memory of the block.
TEST(Values, HaveRoomBehindThem) {
  for (const char* text : {"fwd e4m3 d=256", "fwd e4m3 d=192", "fwd e4m3 d=160", "fwd e4m3 d=128", "fwd e4m3 d=64"}) {
    for (const char* tile : {"tile_kv=64", "tile_kv=96", "tile_kv=128"}) {
      const std::string pins = std::string("family=hopper,transpose=launch,overlap=none,") + tile;
      const KernelConfig c = planned(text, "sm_90a", pins.c_str()).config;
      const HopperLayout l = hopper_layout(c);
      const int last = l.v_offset + (c.stages - 1) * l.v_stage_bytes;
      EXPECT_LE(last + product_pieces(c) * product_columns(c) * kPanelWidth, l.inputs_offset) << text << " " << tile;
    }
  }
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
    ASSERT_TRUE(!plan.before.empty() && without.before.empty());
    ASSERT_EQ(plan.workspace.size(), without.workspace.size() + 1);
    EXPECT_EQ(plan.value_rows, static_cast<int>(without.workspace.size()));
    EXPECT_EQ(bytes_of(plan.workspace.back(), kSizes), 900 * 2 * 80);
    EXPECT_EQ(items_of(plan.before.front().grid, kSizes), 3 * 5 * 2) << "of 64 keys";
    EXPECT_NE(describe_value_rows(plan).find("160 bytes for a token"), std::string::npos);
    EXPECT_EQ(describe_value_rows(without), "");
  }
  EXPECT_TRUE(planned("fwd e4m3 d=64 v_transposed", "x86-64-v3", "").before.empty()) << "hosts launch nothing";
}

// K and V of 8 bits under Q of 16, through whatever pages.
TEST(Keys, AreWidenedByALaunchBehindTheOneThatAppends) {
  const Plan plain = planned("fwd bf16 d=64 heads=8/2 layout=paged(16)", "sm_90a", "family=hopper,tile_kv=96"),
             plan = planned("fwd bf16 kv=e4m3 d=64 heads=8/2 layout=paged(20)", "sm_90a", "family=hopper,tile_kv=96");
  EXPECT_TRUE(plain.before.empty() && plain.workspace.empty() && !plain.launches[0].overlaps);
  ASSERT_EQ(plan.before.size(), 1u);
  EXPECT_TRUE(!plan.before[0].overlaps && plan.launches[0].overlaps);
  EXPECT_EQ(plan.launches[0].buffers, plan.before[0].buffers);
  EXPECT_EQ(items_of(plan.before[0].grid, kSizes), 3 * 4 * 2) << "tiles of keys";
  EXPECT_EQ(bytes_of(plan.workspace, kSizes), 3 * 4 * 2 * 96 * (64 + 64) * 2);
  EXPECT_EQ(hopper_layout(plan.config).bytes - hopper_layout(plain.config).bytes,
            static_cast<int>(scale_slots(plan.config) * sizeof(TileScales)) - kProgressNumbers * 4)
      << "the loop is that of 16 bits, and looks up no pages";

  const Plan two = planned("fwd bf16 kv=e4m3 d=64 heads=8/2 append", "sm_90a", "family=hopper,tile_kv=96");
  ASSERT_EQ(two.before.size(), 2u);
  EXPECT_EQ(two.before[0].entry, "flashjit_append");
  EXPECT_TRUE(!two.before[0].overlaps && two.before[1].overlaps && two.launches[0].overlaps);
}

// There are as many wide rows as K has rows; those of pages that no sequence has stay unwritten.
TEST(Keys, OfLatentsAreWidenedRowByRow) {
  const Plan plain = planned("fwd bf16 d=576/512 heads=16/1 layout=paged(64) v_in_k", "sm_80", "");
  const Plan plan = planned("fwd bf16 kv=latent656 d=576/512 heads=16/1 layout=paged(64) v_in_k append", "sm_80", "");
  ASSERT_EQ(plan.before.size(), 2u);
  EXPECT_EQ(plan.before[0].entry, "flashjit_append");
  CallSizes pool = kSizes;
  pool.k_rows = 64 * 20;
  EXPECT_EQ(items_of(plan.before[1].grid, pool), 64 * 20 / 16);
  ASSERT_EQ(plan.wide_rows, static_cast<int>(plain.workspace.size()));
  EXPECT_EQ(bytes_of(plan.workspace.back(), pool), 64 * 20 * 576 * 2);
  EXPECT_NE(describe_wide_rows(plan).find("latent656 to bf16, in the workspace: 1152 bytes"), std::string::npos);
  EXPECT_EQ(describe_wide_rows(plain), "");
  EXPECT_TRUE(planned("fwd bf16 kv=latent656 d=576/512 v_in_k", "x86-64-v3", "").before.empty())
      << "hosts launch nothing";
}

// Rows of K that lists choose from have gradients, each once for each KV head, however many queries there are.
TEST(Gradients, OfListsHaveAllRowsOfK) {
  const std::string spec = "bwd bf16 d=72/40 heads=8/2 select=keys(40)";
  CallSizes sizes = {.batch = 0, .q_len = 1, .k_len = 40, .k_rows = 100};
  const Plan adds = planned(spec, "sm_90a", "dq=atomics"), ordered = planned(spec, "sm_90a", "dq=launch");
  for (const auto& [plan, last, rows] :
       {std::tuple(&adds, "flashjit_backward_finish_keys", 32), {&ordered, "flashjit_backward_listed_keys", 16}}) {
    ASSERT_EQ(plan->launches.size(), 3u);
    EXPECT_EQ(plan->launches[1].entry, "flashjit_backward_queries");
    EXPECT_EQ(plan->launches[2].entry, last);
    EXPECT_EQ(items_of(plan->launches[2].grid, sizes), (100 + rows - 1) / rows * 2);
    EXPECT_EQ(items_of(plan->launches[1].grid, sizes), 0);
  }
  EXPECT_EQ(items_of(adds.launches[0].grid, sizes), 1) << "which makes sums 0 where there is no query";
  ASSERT_EQ(adds.workspace.size(), 2u);
  EXPECT_EQ(bytes_of(adds.workspace[1], sizes), 100 * 2 * (80 + 48) * 4);
  EXPECT_EQ(ordered.workspace.size(), 1u);
  sizes.batch = 6;  // queries, each with two groups of heads
  EXPECT_EQ(items_of(adds.launches[1].grid, sizes), 12);
}

TEST(Values, OfALaunchTakeTime) {
  const Shape shape = {4, 4096, 4096};
  const auto latency = [&](const char* pins) {
    return roofline(planned("fwd e4m3 d=128 heads=16", "sm_90a", pins), shape).predicted.latency;
  };
  EXPECT_GT(latency("family=hopper,transpose=launch"), latency("family=hopper,transpose=loop") + 5);
}

// dS of shared tensors of 16 bits, two bytes for each score in whole tiles; more than 8 GiB of it is not kept. What is not shared,
// or has 32 bits, is stored or added as it comes.
TEST(Launch, OfSharedTensorsDsIsKept) {
  const auto kept = [](std::string_view words, const CallSizes& call) {
    const Plan plan = planned(fmt::format("bwd bf16 d=64 heads=16 grads=\"t\" {}", words), "sm_90a", "");
    const auto buffer = std::ranges::find(plan.workspace, "kept_ds", &WorkspaceBuffer::name);
    return buffer == plan.workspace.end() ? -1 : bytes_of(*buffer, call);
  };
  EXPECT_EQ(kept("score=\"bias(t, bf16)\"", sizes(4, 4096, 4096)), std::int64_t{2} << 30);
  EXPECT_EQ(kept("score=\"bias(t, bf16)\"", sizes(1, 100, 130)), 2 * 16 * 128 * 256);
  EXPECT_EQ(kept("score=\"bias(t, bf16)\"", sizes(32, 4096, 4096)), 0);
  EXPECT_EQ(kept("score=\"bias(t, bf16)\" b=1", sizes(1, 4096, 4096)), -1);
  EXPECT_EQ(kept("score=\"bias(t)\"", sizes(4, 4096, 4096)), -1);
}

}  // namespace
}  // namespace flashjit
