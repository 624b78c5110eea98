#include "tools/fleet/wanted.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

const std::vector<std::string> kTargets = {"sm_80", "sm_90a"};

// Five kernels for each target, of which one has a target of its own, and two parts of one spec.
constexpr char kManifest[] =
    "# which kernels are wanted\n"
    "fwd bf16 d=64 heads=4/2 mask=\"causal\"\n"
    "bwd bf16 d=64 heads=4/2 mask=\"causal\"\n"
    "fwd bf16 d=128 heads=8 q_len=1\n"
    "fwd fp16 d=64 heads=2 ;; schedule=family=sync ;; arch=sm_90a\n"
    "merge bf16 d=64 heads=4\n"
    "fwd   bf16 d=64 heads=4/2 mask=\"causal\"\n";

std::vector<WantedKernel> wanted(std::string_view text = kManifest, const std::vector<std::string>& archs = kTargets) {
  const auto lines = parse_manifest(text, "m.txt");
  EXPECT_TRUE(lines);
  return wanted_kernels("m.txt", *lines, archs);
}

TEST(Wanted, EachKernelOnce) {
  const auto kernels = wanted();
  std::set<BundleKey> keys;
  for (const WantedKernel& kernel : kernels) keys.insert(kernel.key);
  EXPECT_EQ(kernels.size(), 9u);
  EXPECT_EQ(keys.size(), 9u);
  EXPECT_EQ(kernels.front().location, "m.txt:2");
}

TEST(Wanted, ShardsHaveEachKernelOnceWhateverTheOrderOfTheManifest) {
  for (const int count : {1, 2, 4, 9, 30}) {
    std::map<BundleKey, int> numbers;
    std::string whole;
    for (int number = 1; number <= count; ++number) {
      auto own = wanted();
      const BundleShards shards = take_shard({number, count}, own);
      EXPECT_EQ(shards.kernels, 9u);
      EXPECT_EQ(shards.numbers, (std::vector{static_cast<std::uint32_t>(number)}));
      EXPECT_TRUE(whole.empty() || shards.whole == whole);
      whole = shards.whole;
      for (const WantedKernel& kernel : own) EXPECT_TRUE(numbers.emplace(kernel.key, number).second) << kernel.key.spec;
    }
    EXPECT_EQ(numbers.size(), 9u) << count << " shards";
    auto backwards = wanted();
    std::ranges::reverse(backwards);
    const auto again = deal_kernels(backwards, count);
    for (std::size_t i = 0; i < backwards.size(); ++i) EXPECT_EQ(numbers.at(backwards[i].key), again[i]);
  }
}

TEST(Wanted, AnotherManifestIsAnotherWhole) {
  auto all = wanted(), fewer = wanted(kManifest, {"sm_80"});
  const std::string same = take_shard({1, 2}, all).whole;
  EXPECT_NE(take_shard({1, 2}, fewer).whole, same);
  auto reordered = wanted(kManifest, {"sm_90a", "sm_80"});
  EXPECT_EQ(take_shard({2, 3}, reordered).whole, same);
}

TEST(Wanted, EveryShardRefusesALineThatCannotBeRead) {
  const std::string bad = std::string(kManifest) + "fwd bf16 d=63 heads=4\n";
  for (const int number : {1, 2, 3}) {
    auto own = wanted(bad);
    take_shard({number, 3}, own);
    ASSERT_EQ(own.size(), 2u) << "the line's kernel for either target";
    EXPECT_TRUE(own[0].error && own[1].error);
  }
}

// The order of what NVRTC takes, of which shares are made.
TEST(Wanted, CostsArePredictedFromTheRequestAlone) {
  const auto cost = [](const char* spec, const char* target) {
    const auto request = Request::parse(spec, target, "");
    EXPECT_TRUE(request) << spec;
    return compile_cost(*request);
  };
  EXPECT_LT(cost("merge bf16 d=64 heads=4", "sm_90a"), cost("fwd bf16 d=64 heads=4", "sm_90a"));
  EXPECT_LT(cost("fwd bf16 d=64 heads=4", "sm_80"), cost("fwd bf16 d=64 heads=4", "sm_90a"));
  EXPECT_LT(cost("fwd bf16 d=64 heads=4", "sm_80"), cost("fwd bf16 d=128 heads=4", "sm_80"));
  EXPECT_LT(cost("fwd bf16 d=128 heads=4", "sm_80"), cost("bwd bf16 d=128 heads=4", "sm_80"));
  EXPECT_LT(cost("fwd bf16 d=128 heads=4", "sm_80"), cost("fwd bf16 d=128 heads=4 score=\"bias(table)\"", "sm_80"));
  EXPECT_LT(cost("fwd bf16 d=128 heads=4", "sm_90a"), cost("fwd bf16 d=128 heads=4 kv=e4m3", "sm_90a"));
  const auto pinned = Request::parse("fwd bf16 d=64 heads=4", "sm_90a", "family=sync");
  EXPECT_EQ(compile_cost(*pinned), cost("fwd bf16 d=64 heads=4", "sm_90a")) << "schedules are left out";
}

}  // namespace
}  // namespace flashjit
