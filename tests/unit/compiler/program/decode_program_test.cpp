// The program of a decode kernel computes attention, and a program with a statement changed does not.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/compiler/program/mutations.h"

namespace flashjit {
namespace {

using testing::Case;
using testing::Mutations;

// Tiles that lanes copy, that TMA copies, and that go straight to registers; units of O, fixed parts and many rows.
std::vector<Case> cases() {
  const std::string spec = "fwd bf16 d=128 heads=32/8 q_len<=1", narrow = spec + " kv=e4m3 token_scales";
  return {{spec, "family=decode"},
          {spec, "family=decode,copies=boxes,stages=2"},
          {spec, "family=decode,stages=1"},
          {spec + " mask=\"causal\" layout=packed/paged(16)", "family=decode"},
          {narrow, "family=decode"},
          {narrow, "family=decode,stages=1"},
          {spec + " numerics=batch_invariant", "family=decode"},
          {"fwd bf16 d=128 heads=16/1 q_len<=4", "family=decode,tile_q=32"}};
}

TEST(DecodeProgram, ComputesAttention) {
  for (const Case& c : cases()) {
    const auto plan = testing::plan_of(c);
    ASSERT_TRUE(plan) << c.spec;
    EXPECT_EQ(testing::find_fault(plan->program, testing::interpret_decode), "") << c.spec << " // " << c.pins << "\n"
                                                                                 << dump(plan->program);
  }
}

std::vector<Site> sites_of(Program& program) {
  std::vector<Site> all;
  for (const std::string_view name : {"begin_segment", "attend"}) testing::collect(find_body(program, name)->body, all);
  return all;
}

// Names, without which it would not compile, and what is between segments of a block.
bool may_go_unseen(const Statement& s) {
  constexpr Kind kUnseen[] = {Kind::Let, Kind::Return};
  constexpr std::string_view kCalls[] = {"begin_queries", "look_ahead"};
  if (s.kind == Kind::Call) return std::ranges::count(kCalls, s.label) > 0;
  if (s.kind == Kind::When) return std::ranges::all_of(s.body, may_go_unseen);
  return std::ranges::count(kUnseen, s.kind) > 0;
}

Mutations mutations() { return {cases(), testing::interpret_decode, sites_of, 1}; }

TEST(DecodeProgram, AStatementLessIsSeen) {
  Mutations all = mutations();
  all.try_all([](Program& program, const Site& site, bool& is_excused) {
    const Statement removed = site.take(1).front();
    is_excused = may_go_unseen(removed);
    return fmt::format("{} {}", describe(program, removed), removed.form);
  });
  all.expect_none_unseen();
  EXPECT_GT(all.seen, 60);
}

TEST(DecodeProgram, NeighboursThatChangeSites) {
  Mutations all = mutations();
  all.exchange_neighbours(may_go_unseen);
  all.expect_unseen_at_most(10);
  EXPECT_GT(all.seen, 30);
}

TEST(DecodeProgram, AnotherAttributeIsSeen) {
  Mutations all = mutations();
  all.try_all([](Program& program, const Site& site, bool&) -> std::string {
    Statement& s = site.statement();
    Attributes changed;
    std::string what;
    for (Attribute a : s.attributes.all()) {
      if (a.key == "pending") a.value = std::get<std::int64_t>(a.value) + 1, what = "pending";
      EXPECT_TRUE(changed.set(a.key, a.value, a.writer));
    }
    s.attributes = changed;
    return what.empty() ? what : what + " of " + describe(program, s);
  });
  all.expect_none_unseen();
  EXPECT_GT(all.seen, 8);
}

}  // namespace
}  // namespace flashjit
