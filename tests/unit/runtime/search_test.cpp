// Which kernel is taken where the compiler spoils some of them. The compiler is played: every plan gets the facts that
// a row says, and what is asked of it is written down.
#include "runtime/compile/search.h"

#include <gtest/gtest.h>

#include "runtime/compile/facts.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

constexpr char kSearched[] = "fwd bf16 d=128 heads=8 mask=\"causal\"";

class SearchTest : public testing::Test {
 protected:
  // `said(plan, n)`: of the n-th compile, from 0 on.
  template <class Said>
  Result<Compiled> search(const char* pins, const CompileOptions& options, const Said& said) {
    tried.clear();
    const auto plan = plan_spec(kSearched, "sm_90a", pins);
    EXPECT_TRUE(plan);
    return search_kernel(*plan, options, [&](Plan made) -> Result<Compiled> {
      tried.push_back(made.schedule);
      Result<StoreFacts> facts = said(made, static_cast<int>(tried.size()) - 1);
      if (!facts) return facts.error();
      Compiled compiled{.plan = std::move(made), .source = {}};
      compiled.facts = facts_of(compiled.plan, "", *facts, 0, {});
      compiled.binary = std::make_shared<const StoreEntry>(StoreEntry{.facts = *facts, .payload = {}});
      return compiled;
    });
  }
  static StoreFacts spills(int bytes) { return {{"spill_bytes", std::to_string(bytes)}}; }
  int count(Family family) const {
    return static_cast<int>(std::ranges::count(tried, std::optional(family), &Schedule::family));
  }
  bool noted(const Compiled& compiled, std::string_view words) const {
    return std::ranges::any_of(compiled.facts.notes,
                               [&](const std::string& note) { return note.find(words) != note.npos; });
  }

  std::vector<Schedule> tried;
};

TEST_F(SearchTest, TheFirstChoiceWhereNothingIsWrong) {
  const auto found = search("", {}, [](const Plan&, int) { return StoreFacts(); });
  ASSERT_TRUE(found);
  EXPECT_EQ(tried.size(), 1u);
  EXPECT_EQ(found->facts.family, "hopper");
  EXPECT_EQ(found->facts.schedule, print(plan_spec(kSearched, "sm_90a", "")->schedule));
}

TEST_F(SearchTest, ASpoiledHopperKernelIsPassedOverForALooserOne) {
  for (const char* spoiled : {"spill_bytes", "serialised", "setmaxnreg_ignored"}) {
    const auto found =
        search("", {}, [&](const Plan&, int n) { return n == 0 ? StoreFacts{{spoiled, "8"}} : StoreFacts(); });
    ASSERT_TRUE(found) << spoiled;
    EXPECT_EQ(tried.size(), 2u) << spoiled;
    EXPECT_EQ(found->plan.schedule, tried[1]);
    EXPECT_EQ(found->facts.family, "hopper");
    EXPECT_TRUE(noted(*found, print(tried[0]) + " was passed over")) << spoiled;
  }
}

TEST_F(SearchTest, AfterFourOfThemTheSyncFamily) {
  const auto found = search(
      "", {}, [](const Plan& plan, int) { return spills(plan.schedule.family == find_family("hopper") ? 8 : 0); });
  ASSERT_TRUE(found);
  EXPECT_EQ(count(find_family("hopper")), 4);
  EXPECT_EQ(count(find_family("sync")), 1);
  EXPECT_EQ(found->facts.family, "sync");
  EXPECT_TRUE(noted(*found, "would spill 8 bytes"));
  EXPECT_FALSE(noted(*found, "pinned"));  // by whom?
}

TEST_F(SearchTest, OfSyncKernelsThatAllSpillTheOneThatSpillsLeast) {
  const int bytes[] = {40, 90, 16, 24};
  const auto found = search("family=sync", {}, [&](const Plan&, int n) { return spills(bytes[n]); });
  ASSERT_TRUE(found);
  ASSERT_EQ(tried.size(), 4u);
  EXPECT_EQ(found->facts.spill_bytes, 16);
  EXPECT_EQ(found->plan.schedule, tried[2]);
  EXPECT_TRUE(noted(*found, print(tried[0]) + " would spill 40 bytes of registers and was passed over"));
  EXPECT_TRUE(noted(*found, "family=sync is pinned"));
}

TEST_F(SearchTest, PinsThatLeaveNoOther) {
  const auto found = search("family=hopper", {}, [](const Plan&, int) { return spills(8); });
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().kind, ErrorKind::Unsupported);
  EXPECT_NE(found.error().message.find("or pin family=sync"), std::string::npos) << found.error().message;
  EXPECT_NE(found.error().detail.find(print(tried.back())), std::string::npos) << found.error().detail;
}

TEST_F(SearchTest, OtherErrorsEndIt) {
  const auto found =
      search("", {}, [](const Plan&, int) { return Result<StoreFacts>(Error{ErrorKind::Compile, "broken", {}}); });
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().message, "broken");
  EXPECT_EQ(tried.size(), 1u);
}

TEST_F(SearchTest, QuickCodeIsOfTheSyncFamilyAndMaySpill) {
  const CompileOptions quick{.effort = Effort::Quick};
  const auto found = search("", quick, [](const Plan&, int) { return spills(8); });
  ASSERT_TRUE(found);
  EXPECT_EQ(tried.size(), 1u);
  EXPECT_EQ(found->facts.family, "sync");
  const auto pinned = search("family=hopper", quick, [](const Plan&, int) { return StoreFacts(); });
  ASSERT_FALSE(pinned);
  EXPECT_EQ(pinned.error().kind, ErrorKind::Unsupported);
  EXPECT_TRUE(tried.empty());
}

TEST_F(SearchTest, EditedSourceIsTakenAsItIs) {
  const auto found = search("", {.override_dir = "edited"}, [](const Plan&, int) { return spills(8); });
  ASSERT_TRUE(found);
  EXPECT_EQ(tried.size(), 1u);
  EXPECT_EQ(found->facts.family, "hopper");
  EXPECT_TRUE(noted(*found, "without override_dir"));
}

}  // namespace
}  // namespace flashjit
