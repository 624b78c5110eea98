// Lists of pages of a few queries: when a launch merges them, and what is launched then.
#include "compiler/launches/merged_lists.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "codegen/cuda/emit.h"
#include "compiler/choice/cost_model.h"
#include "compiler/spec/fields/select.h"
#include "compiler/spec/spec.h"
#include "templates/key_lists/layout.h"

namespace flashjit {
namespace {

constexpr std::string_view kOfDrafts = "fwd bf16 d=64 heads=8/2 layout=paged(64) select=pages(16)";

AttentionSpec spec_of(const std::string& more) {
  const auto spec = parse_spec(std::string(kOfDrafts) + more);
  EXPECT_TRUE(spec) << more << " " << spec.error().message;
  return spec ? *spec : AttentionSpec();
}

TEST(MergedLists, AreThoseOfAFewQueriesOfASequence) {
  EXPECT_EQ(merged_queries(spec_of(" q_len=4")), 4);
  EXPECT_EQ(merged_queries(spec_of(" q_len<=32")), 32);
  EXPECT_EQ(merged_queries(spec_of(" q_len<=33")), 0) << "all entries are compared with each other";
  EXPECT_EQ(merged_queries(spec_of(" q_len=1")), 0);
  EXPECT_EQ(merged_queries(spec_of("")), 0) << "there may be many queries";
  EXPECT_EQ(merged_queries(spec_of(" q_len=4 numerics=batch_invariant")), 0) << "bits may not depend on other queries";
  EXPECT_EQ(merged_queries(spec_of(" q_len=4 mask=\"causal\"")), 0) << "the lists are then of keys";
  EXPECT_EQ(merged_queries(*parse_spec("fwd bf16 d=64 heads=8/2 layout=packed/paged(64) select=pages(16)")), 0);
  EXPECT_EQ(merged_queries(*parse_spec("fwd bf16 d=64 heads=8/2 layout=paged(64) select=keys(16) q_len=4")), 0);
}

TEST(MergedLists, ArePredictedByTheSizesOfACall) {
  const AttentionSpec spec = spec_of(" q_len=4");
  EXPECT_EQ(merged_keys(spec, 1), 1024);
  EXPECT_EQ(merged_keys(spec, 5), 2048);
  const Shape seen = seen_by_kernels(spec, {.b = 3, .q_len = 4, .k_len = 99999});
  EXPECT_EQ(seen, (Shape{3, 4, merged_keys(spec, 4)}));
  EXPECT_EQ(seen_by_kernels(spec, seen), seen);
}

TEST(MergedLists, AreWrittenByALaunchBeforeTheLoopOfDecode) {
  const CallSizes sizes = {.batch = 7, .q_len = 3, .k_len = 4 * 16 * 64, .q_tokens = 21, .k_tokens = 0, .k_rows = 6400};
  for (const char* target : {"sm_80", "sm_90a"}) {
    const auto plan = make_plan(spec_of(" q_len<=4"), **find_target(target));
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_EQ(plan->config.merged_queries, 4) << print(plan->schedule);
    ASSERT_EQ(plan->before.size(), 1u);
    EXPECT_EQ(plan->before[0].entry, "flashjit_merged_lists");
    EXPECT_EQ(items_of(plan->before[0].grid, sizes), 7 * 2) << "sequences and KV heads";
    ASSERT_GE(plan->merged_lists, 0);
    const MergedLists lists = merged_lists(plan->config);
    EXPECT_EQ(lists.entries, 64);
    EXPECT_EQ(lists.ints, 64 + 64 + 4 * 64 + 1);
    EXPECT_EQ(bytes_of(plan->workspace[static_cast<std::size_t>(plan->merged_lists)], sizes), 7 * 2 * lists.ints * 4);
    EXPECT_NE(describe_merged_lists(*plan), "");
    EXPECT_FALSE(plan->config.mask_has_holes) << "all pages of a merged list exist";
    const auto source = emit_cuda(*plan);
    ASSERT_TRUE(source) << source.error().message;
    const auto variant = std::ranges::find(source->generated, "variant.gen.cuh", &SourceFile::name);
    ASSERT_NE(variant, source->generated.end());
    EXPECT_NE(variant->text.find("int full_end("), std::string::npos);
    EXPECT_EQ(variant->text.find("visible("), std::string::npos) << "the loop finds where a query's keys of a page end";
  }
  const auto alone = make_plan(spec_of(" q_len=1"), **find_target("sm_90a"));
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_EQ(alone->merged_lists, -1);
  EXPECT_EQ(describe_merged_lists(*alone), "");
  const auto on_host = make_plan(spec_of(" q_len=4"), **find_target("x86-64-v3"));
  ASSERT_TRUE(on_host) << on_host.error().message;
  EXPECT_EQ(on_host->config.merged_queries, 0);
}

TEST(MergedLists, TakeNoScheduleWhoseTilesCannotEndInAPage) {
  for (const auto& [pins, why] :
       {std::pair("family=decode,stages=1", "stages:"), {"family=decode,tile_kv=32,stages=2", "tile_kv:"}}) {
    const auto spec = parse_spec("fwd bf16 d=64 heads=8/2 layout=paged(16) select=pages(16) q_len=4");
    const auto schedule = parse_schedule(pins);
    ASSERT_TRUE(schedule) << schedule.error().message;
    const auto plan = make_plan(*spec, **find_target("sm_90a"), *schedule);
    ASSERT_FALSE(plan) << pins;
    EXPECT_NE(plan.error().message.find(why), std::string::npos) << plan.error().message;
  }
}

TEST(MergedLists, AreReadInPlaceOfTheLists) {
  KernelParams params = {};
  KernelConfig config;
  config.heads_kv = 2;
  config.selected = 3;
  config.merged_queries = 2;
  int lists[2 * 25] = {};  // of a sequence
  read_merged_lists(params, config, lists);
  EXPECT_EQ(params.key_index, lists);
  EXPECT_EQ(params.key_count, lists + 6 + 6 + 12);
  for (const Strides& strides : {params.key_index_stride, params.key_count_stride}) {
    EXPECT_EQ(strides.batch, 2 * 25);
    EXPECT_EQ(strides.head, 25);
  }
}

}  // namespace
}  // namespace flashjit
