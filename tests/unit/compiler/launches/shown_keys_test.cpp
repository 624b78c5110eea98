// A mask beside lists of keys: whose it becomes, and what is launched before the lists are read.
#include "compiler/launches/shown_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "codegen/cuda/emit.h"
#include "compiler/spec/spec.h"

namespace flashjit {
namespace {

Plan plan_for(const std::string& text, const char* target) {
  const auto plan = make_plan(*parse_spec(text), **find_target(target));
  EXPECT_TRUE(plan) << text << " " << plan.error().message;
  return plan ? *plan : Plan();
}

// Nothing where a family writes its loop by hand.
std::string generated(const Plan& plan, std::string_view name) {
  const auto source = emit_cuda(plan);
  EXPECT_TRUE(source) << source.error().message;
  if (!source) return {};
  const auto file = std::ranges::find(source->generated, name, &SourceFile::name);
  return file == source->generated.end() ? std::string() : file->text;
}

TEST(ShownKeys, TheMaskIsThatOfTheLists) {
  for (const std::string text : {"fwd bf16 d=64 heads=8/2 select=keys(40) mask=\"causal\"",
                                 "bwd bf16 d=64 layout=packed select=keys(40) mask=\"x[q] < k\" params=\"x: i32[1]\"",
                                 "fwd bf16 d=64 heads=8 select=keys(40) mask=\"h < k\""}) {
    auto spec = parse_spec(text);
    ASSERT_TRUE(spec) << text << " " << spec.error().message;
    EXPECT_EQ(print(*spec), text);
    EXPECT_FALSE(spec->mask);
    ASSERT_TRUE(spec->list_mask);
    const std::string mask = print(spec->list_mask), meant = meaning(*spec);
    EXPECT_NE(meant.find(mask), std::string::npos) << "kernels of two masks are two";
    ASSERT_TRUE(validate(*spec)) << text;
    EXPECT_EQ(print(spec->list_mask), mask);
    EXPECT_EQ(meaning(*spec), meant);
    spec->mask_text.clear();
    spec->declared.clear();
    ASSERT_TRUE(validate(*spec));
    EXPECT_FALSE(spec->list_mask) << "without its text it is gone";
  }
  AttentionSpec built = *parse_spec("fwd bf16 d=64 heads=8 select=keys(40)");
  built.mask = Expr::variable(Variable::K) <= Expr::variable(Variable::Q);
  ASSERT_TRUE(validate(built));
  EXPECT_EQ(print(built), "fwd bf16 d=64 heads=8 select=keys(40) mask=\"k <= q\"");
  EXPECT_FALSE(parse_spec("fwd bf16 d=64 heads=8 mask=\"causal\"")->list_mask);
}

// Every family reads a copy of the lists, so that the loop is the one without a mask.
TEST(ShownKeys, AreWrittenByALaunchBeforeAnyLoop) {
  const CallSizes sizes = {
      .batch = 21, .q_len = 1, .k_len = 1500, .q_tokens = 21, .k_tokens = 0, .k_rows = 300};  // as of lists
  for (const std::string text :
       {"fwd bf16 d=576/512 heads=64/1 v_in_k select=keys(1500)", "fwd bf16 d=64 heads=8/2 select=keys(1500)",
        "fwd bf16 d=64 heads=8/2 select=keys(1500) q_len=1", "bwd bf16 d=64 heads=8/2 select=keys(1500)"}) {
    for (const char* target : {"sm_80", "sm_90a"}) {
      const Plan with = plan_for(text + " mask=\"causal\"", target), without = plan_for(text, target);
      ASSERT_EQ(with.before.size(), without.before.size() + 1) << text;
      const KernelLaunch& launch = with.before.back();
      EXPECT_EQ(launch.entry, "flashjit_shown_keys");
      const int heads = with.spec.heads_kv;
      EXPECT_EQ(items_of(launch.grid, sizes), 21 * heads * 2) << "pieces of 1024 entries";
      ASSERT_GE(with.shown_keys, 0);
      EXPECT_EQ(bytes_of(with.workspace[static_cast<std::size_t>(with.shown_keys)], sizes), 21 * heads * 1500 * 4);
      EXPECT_EQ(print(with.schedule), print(without.schedule));
      EXPECT_NE(describe_shown_keys(with), "");
      EXPECT_EQ(describe_shown_keys(without), "");
      EXPECT_EQ(without.shown_keys, -1);
      EXPECT_NE(generated(with, "variant.gen.cuh").find("bool list_shows("), std::string::npos);
      EXPECT_EQ(generated(with, "loop.gen.cuh"), generated(without, "loop.gen.cuh"));
    }
  }
  EXPECT_TRUE(plan_for("fwd bf16 d=64 select=keys(40) mask=\"causal\"", "x86-64-v3").before.empty())
      << "hosts launch nothing";
}

TEST(ShownKeys, AreReadInPlaceOfTheLists) {
  KernelParams params = {};
  params.queries_of_sequence = 7;
  int lists[1] = {};
  read_shown_keys(params, 2, 40, lists);
  EXPECT_EQ(params.key_index, lists);
  EXPECT_EQ(params.key_index_stride.batch, 7 * 80);
  EXPECT_EQ(params.key_index_stride.token, 80);
  EXPECT_EQ(params.key_index_stride.head, 40);
}

}  // namespace
}  // namespace flashjit
