// Which plans visit tiles by lists, and what they launch for it.
#include "compiler/launches/tile_lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "codegen/cuda/emit.h"
#include "compiler/choice/candidates.h"
#include "templates/tile_lists/layout.h"

namespace flashjit {
namespace {

constexpr char kDocuments[] = R"x(fwd bf16 d=128 heads=8 mask="document(doc) & causal")x";

Result<Plan> plan_of(const std::string& text, const char* pins = "") {
  const auto spec = parse_spec(text);
  const auto schedule = parse_schedule(pins);
  EXPECT_TRUE(spec && schedule) << text << pins;
  return make_plan(*spec, **find_target("sm_90a"), *schedule);
}
Plan planned(const std::string& text, const char* pins = "") {
  auto plan = plan_of(text, pins);
  EXPECT_TRUE(plan) << text << " " << plan.error().message;
  return plan ? *plan : Plan{};
}

std::vector<std::string> launches_before(const Plan& plan) {
  std::vector<std::string> entries;
  for (const KernelLaunch& launch : plan.before) entries.push_back(launch.entry);
  return entries;
}

TEST(TileLists, AreMadeWhereTensorsDecide) {
  const std::string bounds = "flashjit_tile_bounds", answers = "flashjit_pair_answers", lists = "flashjit_tile_lists";
  const struct {
    std::string text;
    std::vector<std::string> launches;
    int heads;
  } rows[] = {
      {kDocuments, {bounds, lists}, 1},
      {R"x(bwd bf16 d=128 heads=8 mask="document(doc) & causal")x", {bounds, lists}, 1},
      {R"x(fwd bf16 d=128 heads=8 mask="keep[h, q / 128, k / 128] != 0" params="keep: u8[3]")x", {lists}, 8},
      {R"x(fwd bf16 d=128 heads=8 mask="k < end[b, q]" params="end: i32[2]")x", {lists}, 1},
      {R"x(fwd bf16 d=128 heads=8 mask="seen[b, q, k] != 0" params="seen: u8[3]")x", {answers, lists}, 1},
      {R"x(fwd bf16 d=128 heads=8 layout=packed mask="document(doc)")x", {bounds, lists}, 1},
      // Nothing that a tensor holds along queries or keys decides it, or there are few keys.
      {R"x(fwd bf16 d=128 heads=8 mask="causal")x", {}, 0},
      {R"x(fwd bf16 d=128 heads=8 mask="k < end[b]" params="end: i32[1]")x", {}, 0},
      {R"x(fwd bf16 d=128 heads=8 k_len<=1024 mask="document(doc)")x", {}, 0},
  };
  for (const auto& [text, launches, heads] : rows) {
    SCOPED_TRACE(text);
    const Plan plan = planned(text);
    EXPECT_EQ(launches_before(plan), launches);
    EXPECT_EQ(plan.config.list_heads, heads);
    EXPECT_EQ(plan.schedule.tiles, heads > 0 ? TileSource::list : TileSource::range);
    EXPECT_EQ(plan.tile_lists >= 0, heads > 0);
    EXPECT_EQ(describe_tile_lists(plan).empty(), heads == 0);
    EXPECT_TRUE(emit_cuda(plan));
  }
}

// A plan without lists has no launch before its loop, and needs no workspace.
TEST(TileLists, MayBePinnedAway) {
  const Plan plan = planned(kDocuments, "tiles=range");
  EXPECT_TRUE(plan.before.empty());
  EXPECT_TRUE(plan.workspace.empty());
}

TEST(TileLists, AreRefusedWithTheReason) {
  const struct {
    std::string text;
    const char *pins, *reason;
  } rows[] = {
      {R"x(fwd bf16 d=128 heads=8 mask="causal")x", "tiles=list", "tiles: list is for masks that read tensors"},
      {R"x(bwd bf16 d=128 heads=8 mask="document(doc)")x", "tiles=list,dq=launch", "tiles: only sums in any order"},
      {R"x(bwd bf16 d=128 heads=8 mask="document(doc)" score="s + w[h]" params="w: fp32[1]" grads="w")x",
       "tiles=list,dq=atomics", "tiles: with grads="},
      {R"x(fwd bf16 d=128 heads=8/2 q_len<=16 mask="k < end[h, q]" params="end: i32[2]")x",
       "family=hopper,tiles=list,head_tiles=grouped", "head_tiles: grouped needs one KV range"},
  };
  for (const auto& [text, pins, reason] : rows) {
    const auto plan = plan_of(text, pins);
    ASSERT_FALSE(plan) << text;
    EXPECT_NE(plan.error().message.find(reason), std::string::npos) << plan.error().message;
  }
}

// A list has room for all tiles; there is one for each tile of the other axis, and each head that has its own.
TEST(TileLists, HaveRoom) {
  const auto bytes = [](const Plan& plan, const CallSizes& sizes) {
    return bytes_of(plan.workspace[static_cast<std::size_t>(plan.tile_lists)], sizes);
  };
  const CallSizes sizes = {.batch = 2, .q_len = 1000, .k_len = 3000, .q_tokens = 2000, .k_tokens = 6000};
  const char* pins = "family=hopper,tile_q=128,tile_kv=64";
  EXPECT_EQ(bytes(planned(kDocuments, pins), sizes), 4 * 2 * 8 * (47 + kListCounts));
  EXPECT_EQ(bytes(planned(R"x(fwd bf16 d=128 heads=8 mask="k < end[h, q]" params="end: i32[2]")x", pins), sizes),
            8 * 4 * 2 * 8 * (47 + kListCounts));
  // The tiles of packed sequences have numbers, of which each sequence may leave one out.
  EXPECT_EQ(bytes(planned(R"x(fwd bf16 d=128 heads=8 layout=packed mask="document(doc)")x", pins), sizes),
            4 * (2000 / 128 + 1 + 2) * (47 + kListCounts));
  // Backward has lists of queries for tiles of keys.
  EXPECT_EQ(
      bytes(planned(R"x(bwd bf16 d=128 heads=8 mask="document(doc)")x", "family=hopper_backward,tile_q=64"), sizes),
      4 * 2 * 24 * (16 + kListCounts));
}

}  // namespace
}  // namespace flashjit
