// The program of a hopper kernel computes attention, and a program with a statement changed does not.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cuda/loop.h"
#include "compiler/plan.h"
#include "compiler/program/edit.h"
#include "compiler/program/ir_verify_roles.h"
#include "tests/sanitized.h"
#include "tests/unit/compiler/program/interpreter.h"

namespace flashjit {
namespace {

constexpr char kHopper[] = "templates/hopper/";

struct Case {
  std::string spec, pins;
};
// Each choice that changes statements, and pairs of these.
std::vector<Case> cases() {
  std::vector<Case> all;
  const std::string wide[] = {"fwd bf16 d=128 mask=\"causal\"",
                              "fwd fp16 d=64 heads=4/2 lse=ln",
                              "fwd bf16 d=64 score=\"softcap(50.0)\" mask=\"window(300, 0)\" max_logit",
                              "fwd bf16 d=128 heads=2 score=\"bias(extra, bf16)\"",
                              "fwd bf16 d=64 heads=2 dropout=0.25 mask=\"causal\" sink",
                              "fwd bf16 d=128 out=fp32 layout=packed mask=\"causal\""};
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

// Nothing where no schedule has these pins.
std::optional<Plan> plan_of(const Case& c) {
  const auto spec = parse_spec(c.spec);
  EXPECT_TRUE(spec) << c.spec << ": " << spec.error().message;
  const auto target = find_target("sm_90a");
  const auto pins = parse_schedule(c.pins);
  EXPECT_TRUE(pins) << c.pins;
  if (!spec || !target || !pins) return {};
  auto plan = make_plan(*spec, **target, *pins);
  if (!plan) return {};
  return std::move(*plan);
}

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6})
    all.push_back({{{3, 1}, {1, 1}, {0, 0}, {9, 2}, {2, 2}, {6, 1}, {5, 1}}, seed});
  return all;
}

std::string find_fault(const Program& program) {
  for (const Scenario& scenario : scenarios()) {
    if (const std::string wrong = testing::interpret(program, scenario); !wrong.empty()) return wrong;
  }
  return {};
}

TEST(HopperProgram, ComputesAttention) {
  int programs = 0;
  for (const Case& c : cases()) {
    const auto plan = plan_of(c);
    if (!plan) continue;
    ++programs;
    EXPECT_EQ(find_fault(plan->program), "") << c.spec << " // " << c.pins << "\n" << dump(plan->program);
  }
  EXPECT_GE(programs, 50);
}

// Every statement of the steps, by the body it is in.
void collect(Body& body, std::vector<Place>& out) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    out.push_back({&body, i});
    collect(body[i].body, out);
  }
}
std::vector<Place> places_of(Program& program) {
  std::vector<Place> all;
  std::vector<std::string_view> names = {
      "main_step",           "careful_step", "lower",    "finish_item", "copy_tile_keys",
      "copy_waiting_values", "end_tile",     "announce", "end_values",  "transpose"};
  // A warpgroup that is alone passes nothing.
  if (consumers_of(program) > 1) names.insert(names.end(), {"pass_copies", "pass_tile", "pass_item"});
  for (const std::string_view name : names)
    if (Statement* body = find_body(program, name)) collect(body->body, all);
  return all;
}

// Statements whose loss changes neither what is computed in exact numbers nor who waits for whom: names, without which it would
// not compile, what only rounded numbers or a real compiler show, and what is another launch's.
bool may_go_unseen(const Statement& s) {
  constexpr Kind kUnseen[] = {Kind::Let,      Kind::Draw,   Kind::Drop,     Kind::Look,
                              Kind::Fragment, Kind::Return, Kind::Otherwise};
  constexpr std::string_view kCalls[] = {"gather_warp",  "ask_scales",        "receive_scales", "note_failure",
                                         "await_stores", "await_stores_read", "join",           "store_scales",
                                         "clear_rows",   "clear_columns",     "mark_end"};
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

// What changes programs, one place at a time, and what came of it.
struct Mutations {
  std::size_t step = 1;  // every such case
  int tried = 0, seen = 0, excused = 0, printed_alike = 0;
  std::vector<std::string> unseen = {};

  // `change` says what it has changed; empty: there is nothing to change there.
  template <class Change>
  void try_all(const Change& change) {
    const std::vector<Case> all = cases();
    for (std::size_t n = 0; n < all.size(); n += step) {
      const Case& c = all[n];
      const auto plan = plan_of(c);
      if (!plan) continue;
      const auto text = emit_loop(plan->program, kHopper);
      ASSERT_TRUE(text) << text.error().message;
      Program whole = plan->program;
      const std::size_t count = places_of(whole).size();
      for (std::size_t i = 0; i < count; ++i) {
        Program program = plan->program;
        bool is_excused = false;
        const std::string changed = change(program, places_of(program)[i], is_excused);
        if (changed.empty()) continue;
        ++tried;
        const auto other = emit_loop(program, kHopper);
        printed_alike += other && *other == *text;
        if (!find_fault(program).empty()) ++seen;
        else if (is_excused) ++excused;
        else unseen.push_back(fmt::format("{}: {} // {}", changed, c.spec, c.pins));
      }
    }
    ::testing::Test::RecordProperty("tried", tried);
    ::testing::Test::RecordProperty("seen", seen);
    std::printf("%d changes: %d seen, %d that may go unseen, %zu others\n", tried, seen, excused, unseen.size());
    EXPECT_EQ(printed_alike, 0);
  }
};

TEST(HopperProgram, AStatementLessIsSeen) {
  Mutations mutations{.step = FLASHJIT_SANITIZED ? 9 : 1};
  mutations.try_all([](Program& program, const Place& place, bool& is_excused) {
    const Statement removed = place.take(1).front();
    is_excused = may_go_unseen(removed) || waits_twice(program, removed);
    return fmt::format("{} {}", describe(program, removed), removed.form);
  });
  EXPECT_TRUE(mutations.unseen.empty()) << fmt::format("{}", fmt::join(mutations.unseen, "\n"));
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 200 : 2000);
}

// Neighbours may change places where neither needs the other: no more than what was so when this was written.
TEST(HopperProgram, NeighboursThatChangePlaces) {
  Mutations mutations{.step = FLASHJIT_SANITIZED ? 16 : 4};
  mutations.try_all([](Program& program, const Place& place, bool& is_excused) -> std::string {
    if (place.at + 1 >= place.body->size()) return {};
    Statement &a = place.statement(), &b = (*place.body)[place.at + 1];
    if (b.kind == Kind::Otherwise) return {};
    is_excused = may_go_unseen(a) || may_go_unseen(b);
    std::swap(a, b);
    return fmt::format("{} before {}", describe(program, a), describe(program, b));
  });
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 50 : 300);
}

std::string other_barrier(const Statement& s, const std::string& barrier) {
  if (s.kind == Kind::Load) return barrier == "full" ? "copied" : "full";
  return barrier == "full" ? "empty" : "full";
}

TEST(HopperProgram, AnotherAttributeIsSeen) {
  Mutations mutations;
  mutations.try_all([](Program& program, const Place& place, bool& is_excused) -> std::string {
    Statement& s = place.statement();
    Attributes changed;
    std::string what;
    for (Attribute a : s.attributes.all()) {
      if (a.key == "pending") a.value = std::get<std::int64_t>(a.value) + 1, what = "pending";
      else if (a.key == "barrier") a.value = other_barrier(s, print(a.value)), what = "barrier";
      else if (a.key == "on_top") a.value = std::string(print(a.value) == "true" ? "false" : "true"), what = "on_top";
      else if (a.key == "piece" && s.kind == Kind::Mma) a.value = std::get<std::int64_t>(a.value) + 1, what = "piece";
      EXPECT_TRUE(changed.set(a.key, a.value, a.writer));
    }
    s.attributes = changed;
    is_excused = waits_twice(program, s) || s.form == "behind_sum";
    return what.empty() ? what : what + " of " + describe(program, s);
  });
  EXPECT_TRUE(mutations.unseen.empty()) << fmt::format("{}", fmt::join(mutations.unseen, "\n"));
  EXPECT_GT(mutations.seen, 200);
}

}  // namespace
}  // namespace flashjit
