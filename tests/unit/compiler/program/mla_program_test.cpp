// The program of an mla kernel computes attention, and a program with a statement changed does not.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/compiler/program/mutations.h"

namespace flashjit {
namespace {

using testing::Case;
using testing::Mutations;

// Each choice that changes statements: a score, masks, blocks alone and in clusters.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string rest : {"", " mask=\"causal\"", " score=\"softcap(30.0)\"", " layout=packed/paged(64) lse=ln",
                                 " mask=\"q % 3 == k % 3\" max_logit"})
    for (const std::string rows : {"64", "128"})
      all.push_back({"fwd bf16 d=576/512 heads=128/1 v_in_k" + rest, "family=mla,tile_q=" + rows});
  // Threads gather K: they hold rows of 8 bits, and copy those of 16.
  for (const std::string rest :
       {" kv=e4m3", " kv=latent656 mask=\"causal\"", " kv=e4m3 token_scales score=\"softcap(30.0)\" select=keys(64)"})
    for (const std::string rows : {"64", "128"})
      all.push_back({"fwd bf16 d=576/512 heads=128/1 v_in_k" + rest, "family=mla,tile_q=" + rows});
  all.push_back({"fwd bf16 d=576/512 heads=128/1 v_in_k select=keys(2048)", "family=mla,tile_q=64"});
  // V is all of K, so that P has room of its own; and halves of V are narrower.
  for (const std::string rest : {"d=512 heads=64/1 v_in_k", "d=512 heads=64/1 v_in_k kv=latent584 layout=paged(64)",
                                 "d=320/256 heads=32/1 v_in_k"})
    for (const std::string rows : {"64", "128"}) all.push_back({"fwd bf16 " + rest, "family=mla,tile_q=" + rows});
  all.push_back({"fwd bf16 d=512 heads=64/1 v_in_k select=keys(2048)", "family=mla,tile_q=64"});
  return all;
}

TEST(MlaProgram, ComputesAttention) {
  std::vector<Case> all = cases();
  // Fixed parts change what a block begins with, and no role.
  all.push_back({"fwd bf16 d=576/512 heads=128/1 v_in_k numerics=batch_invariant", "family=mla,tile_q=128"});
  for (const Case& c : all) {
    const auto plan = testing::plan_of(c);
    ASSERT_TRUE(plan) << c.spec;
    EXPECT_EQ(testing::find_fault(plan->program, testing::interpret_mla), "") << c.spec << " // " << c.pins << "\n"
                                                                              << dump(plan->program);
  }
}

// Every statement of the roles.
std::vector<Site> sites_of(Program& program) {
  std::vector<Site> all;
  for (Statement& role : program.body)
    for (Statement& body : role.body)
      if (role.kind != Kind::Entry) testing::collect(body.body, all);
  testing::collect_set_up(program.body, all);
  return all;
}

// Statements whose loss changes neither what is computed in exact numbers nor who waits for whom: names, without which it
// would not compile, where a role is in its tiles, what only a real compiler shows, and what is between threads of a warp or
// warps of a warpgroup.
bool may_go_unseen(const Statement& s) {
  constexpr Kind kUnseen[] = {Kind::Let, Kind::Otherwise, Kind::Keep, Kind::Fence, Kind::Mark, Kind::Advance};
  constexpr std::string_view kCalls[] = {"gather_warp",    "sync_group",       "await_asked",     "tell_asked",
                                         "find_next_item", "prefetch_queries", "next_item",       "begin_next_launch",
                                         "find_first",     "find_next",        "fetch_last_half", "fetch_rows",
                                         "call_queries",   "publish_item"};
  if (s.kind == Kind::Call) return std::ranges::count(kCalls, s.label) > 0;
  if (s.kind == Kind::When) return std::ranges::all_of(s.body, may_go_unseen);
  return std::ranges::count(kUnseen, s.kind) > 0;
}

// One group of products does for two, where all are waited for together: the pieces of S.
bool joins_groups(const Site& site) {
  const Statement& s = site.statement();
  if (s.kind != Kind::Commit || site.at + 3 >= site.body->size()) return false;
  const auto at = [&](std::size_t i) -> const Statement& { return (*site.body)[site.at + i]; };
  return at(1).kind == Kind::Await && at(3).kind == Kind::Mma && at(1).form.ends_with("piece");
}
// References begin low where nobody says how high, and rise: that takes time.
bool begins_rows(const Statement& s) {
  return s.kind == Kind::When ? s.label == "starts" : s.kind == Kind::Fill && s.form == "begin";
}

Mutations mutations_of(std::size_t step) { return {cases(), testing::interpret_mla, sites_of, step}; }

TEST(MlaProgram, AStatementLessIsSeen) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 12 : 1);
  mutations.try_all([](Program& program, const Site& site, bool& is_excused) {
    is_excused = joins_groups(site);
    const Statement removed = site.take(1).front();
    is_excused |= may_go_unseen(removed) || testing::begins_otherwise(removed) || begins_rows(removed);
    return fmt::format("{} {}", describe(program, removed), removed.form);
  });
  mutations.expect_none_unseen();
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 50 : 600);
}

TEST(MlaProgram, NeighboursThatChangeSites) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 16 : 2);
  mutations.exchange_neighbours(may_go_unseen);
  mutations.expect_unseen_at_most(121);
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 8 : 60);
}

TEST(MlaProgram, AnotherAttributeIsSeen) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 6 : 1);
  mutations.try_all([](Program& program, const Site& site, bool&) -> std::string {
    return testing::change_attributes(program, site.statement());
  });
  mutations.expect_none_unseen();
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 15 : 100);
}

}  // namespace
}  // namespace flashjit
