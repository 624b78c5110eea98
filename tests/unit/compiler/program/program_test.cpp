// The program of a hopper kernel computes attention, and a program with a statement changed does not.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/compiler/program/mutations.h"

namespace flashjit {
namespace {

using testing::Case;
using testing::collect;
using testing::Mutations;

// Each choice that changes statements, and pairs of these.
std::vector<Case> cases() {
  std::vector<Case> all;
  const std::string wide[] = {"fwd bf16 d=128 mask=\"causal\"",
                              "fwd fp16 d=64 heads=4/2 lse=ln",
                              "fwd bf16 d=64 score=\"softcap(50.0)\" mask=\"window(300, 0)\" max_logit",
                              "fwd bf16 d=128 heads=2 score=\"bias(extra, bf16)\"",
                              "fwd bf16 d=64 heads=2 dropout=0.25 mask=\"causal\" sink",
                              "fwd bf16 d=128 out=fp32 layout=packed mask=\"causal\"",
                              "fwd bf16 d=128 mask=\"document(doc) & causal\"",
                              "fwd fp16 d=64 heads=2 mask=\"k < 4 | window(300, 0)\""};
  const std::string narrow[] = {
      "fwd e4m3 d=128 mask=\"causal\" out=bf16", "fwd e4m3 d=64 out=bf16 linear_exp mask=\"window(300, 0)\"",
      "fwd e4m3 d=64 out=bf16 score=\"bias(extra, bf16)\" mask=\"window(40, 0)\"",
      "fwd e4m3 d=128 out=bf16 scales=block(128)", "fwd e4m3 d=64 heads=2 score=\"softcap(50.0)\" out=bf16"};
  for (const std::string& spec : wide) {
    for (const std::string pins :
         {"overlap=qk_pv", "overlap=none", "reference=tile", "row_sum=matrix",
          "exclusive=issue,warpgroups=2,tile_q=128", "exclusive=none,warpgroups=2,tile_q=128", "q_stages=1"})
      all.push_back({spec, "family=hopper," + pins});
  }
  for (const std::string& spec : narrow) {
    for (const std::string pins : {"overlap=qk_pv,row_sum=adds", "overlap=none", "reference=tile", "row_sum=matrix",
                                   "exclusive=issue,warpgroups=2,tile_q=128"})
      all.push_back({spec, "family=hopper," + pins});
  }
  return all;
}

TEST(HopperProgram, ComputesAttention) {
  int programs = 0;
  for (const Case& c : cases()) {
    const auto plan = testing::plan_of(c);
    if (!plan) continue;
    ++programs;
    EXPECT_EQ(testing::find_fault(plan->program, testing::interpret), "") << c.spec << " // " << c.pins << "\n"
                                                                          << dump(plan->program);
  }
  EXPECT_GE(programs, 50);
}

// Every statement of the steps, by the body it is in.
std::vector<Site> sites_of(Program& program) {
  std::vector<Site> all;
  std::vector<std::string_view> names = {
      "main_step",           "mixed_step", "careful_step", "lower",      "finish_item", "copy_tile_keys",
      "copy_waiting_values", "end_tile",   "announce",     "end_values", "transpose"};
  // A warpgroup that is alone passes nothing.
  if (consumers_of(program) > 1) names.insert(names.end(), {"pass_copies", "pass_tile", "pass_item"});
  for (const std::string_view name : names)
    if (Statement* body = find_body(program, name)) collect(body->body, all);
  testing::collect_set_up(program.body, all);
  return all;
}

// Statements whose loss changes neither what is computed in exact numbers nor who waits for whom: names, without which it would
// not compile, what only rounded numbers or a real compiler show, and what is another launch's.
bool may_go_unseen(const Statement& s) {
  constexpr Kind kUnseen[] = {Kind::Let,      Kind::Draw,   Kind::Drop,     Kind::Look,
                              Kind::Fragment, Kind::Return, Kind::Otherwise};
  constexpr std::string_view kCalls[] = {"gather_warp",  "ask_scales",        "receive_scales", "note_failure",
                                         "await_stores", "await_stores_read", "join",           "store_scales",
                                         "store_number", "clear_rows",        "clear_columns",  "mark_end"};
  if (s.kind == Kind::Call) return std::ranges::count(kCalls, s.label) > 0;
  if (s.kind == Kind::When) return std::ranges::all_of(s.body, may_go_unseen);
  // For ptxas, where nothing has touched the registers; and what a score does to products that are scores.
  if (s.kind == Kind::Keep || s.kind == Kind::Fence || (s.kind == Kind::Score && s.form == "all")) return true;
  // A barrier that has been waited for.
  if (s.kind == Kind::Await) return s.form == "behind_sum";
  if (s.kind == Kind::Store) return s.form == "rows" || s.form == "part";
  return std::ranges::count(kUnseen, s.kind) > 0;
}
// Of two waits of careful steps either is enough where a product is waited for before the next is issued.
bool waits_twice(const Program& program, const Statement& s) {
  const Statement* main = find_body(program, "main_step");
  const auto first = std::ranges::find(main->body, Kind::Mma, &Statement::kind);
  return s.kind == Kind::Wait && first->form != "scores";
}

Mutations mutations_of(std::size_t step) { return {cases(), testing::interpret, sites_of, step}; }

TEST(HopperProgram, AStatementLessIsSeen) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 27 : 1);
  mutations.try_all([](Program& program, const Site& site, bool& is_excused) {
    const Statement removed = site.take(1).front();
    is_excused = may_go_unseen(removed) || testing::begins_otherwise(removed) || waits_twice(program, removed);
    return fmt::format("{} {}", describe(program, removed), removed.form);
  });
  mutations.expect_none_unseen();
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 60 : 2000);
}

// Neighbours may change sites where neither needs the other.
TEST(HopperProgram, NeighboursThatChangeSites) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 48 : 4);
  mutations.exchange_neighbours(may_go_unseen);
  mutations.expect_unseen_at_most(118);
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 12 : 300);
}

TEST(HopperProgram, AnotherAttributeIsSeen) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 6 : 1);
  mutations.try_all([](Program& program, const Site& site, bool& is_excused) -> std::string {
    Statement& s = site.statement();
    const std::string what = testing::change_attributes(program, s);
    is_excused = waits_twice(program, s) || s.form == "behind_sum" || testing::begins_otherwise(s);
    return what;
  });
  mutations.expect_none_unseen();
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 30 : 200);
}

}  // namespace
}  // namespace flashjit
