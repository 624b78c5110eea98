// The program of a hopper_backward kernel computes gradients, and a program with a statement changed does not.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/compiler/program/mutations.h"

namespace flashjit {
namespace {

using testing::Case;
using testing::Mutations;

// Each choice that changes statements, and pairs of these.
std::vector<Case> cases() {
  std::vector<Case> all;
  const std::string table = "score=\"s + table[h, q, k]\" params=\"table: bf16[3]\"",
                    slope = "params=\"slope: fp32[1]\"";
  for (const std::string& spec :
       {std::string("bwd bf16 d=128 heads=2 mask=\"causal\""), std::string("bwd fp16 d=64 heads=4/2"),
        std::string("bwd bf16 d=128 dropout=0.1"), std::string("bwd bf16 d=64 dropout=0.1 mask=\"window(300, 0)\""),
        std::string("bwd bf16 d=128 score=\"softcap(50.0)\" mask=\"causal\""),
        std::string("bwd bf16 d=64 layout=packed mask=\"causal\""), "bwd bf16 d=128 heads=2 " + table,
        "bwd bf16 d=128 heads=2 " + table + " grads=\"table\"", "bwd bf16 d=64 heads=2 " + table + " grads=\"table\"",
        "bwd bf16 d=128 heads=2 score=\"s - slope[h] * (q - k)\" " + slope + " grads=\"slope\"",
        "bwd bf16 d=64 heads=2 score=\"s * slope[h]\" " + slope + " grads=\"slope\"",
        std::string("bwd bf16 d=256 heads=2"), std::string("bwd bf16 d=64 score=\"s * s / s\""),
        std::string("bwd bf16 d=96 mask=\"(q + k) % 7 != h\""), std::string("bwd fp16 d=192/128 mask=\"causal\""),
        std::string("bwd bf16 d=256 dropout=0.1"), std::string("bwd bf16 d=256 score=\"softcap(50.0)\"")}) {
    for (const std::string dq : {"atomics", "ordered", "launch"})
      all.push_back({spec, "family=hopper_backward,dq=" + dq});
  }
  // A warpgroup alone.
  for (const std::string spec :
       {"bwd bf16 d=128 heads=2 blocks=64", "bwd fp16 d=64 heads=4/2 blocks=64 mask=\"causal\""})
    all.push_back({spec, "family=hopper_backward,tile_q=64,tile_kv=64,tiles=list"});
  return all;
}

TEST(HopperBackwardProgram, ComputesGradients) {
  int programs = 0;
  for (const Case& c : cases()) {
    const auto plan = testing::plan_of(c);
    if (!plan) continue;
    ++programs;
    EXPECT_EQ(testing::find_fault(plan->program, testing::interpret_backward), "") << c.spec << " // " << c.pins << "\n"
                                                                                   << dump(plan->program);
  }
  EXPECT_GE(programs, 25);
}

// Every statement of the roles, of launches with roles too.
void collect_roles(Body& roles, std::vector<Site>& all) {
  for (Statement& role : roles) {
    if (role.kind == Kind::Launch) collect_roles(role.body, all);
    if (role.kind == Kind::Entry || role.kind == Kind::Launch) continue;
    for (Statement& body : role.body) testing::collect(body.body, all);
  }
}
std::vector<Site> sites_of(Program& program) {
  std::vector<Site> all;
  collect_roles(program.body, all);
  testing::collect_set_up(program.body, all);
  return all;
}

// Statements whose loss changes neither what is computed in exact numbers nor who waits for whom: names, without which it
// would not compile, what only rounded numbers or a real compiler show, and what is between these roles and those that deal
// out items, or sum up gradients of parameters.
bool may_go_unseen(const Statement& s) {
  constexpr Kind kUnseen[] = {Kind::Let,  Kind::Draw,  Kind::Drop, Kind::Return, Kind::Otherwise,
                              Kind::Keep, Kind::Fence, Kind::Mark, Kind::Advance};
  constexpr std::string_view kCalls[] = {
      "read_terms",     "gather_warp",       "copy_own_inputs",    "read_inputs",
      "set_ones_again", "keep_numbers",      "prefetch",           "put_gradients",
      "await_turn",     "find_slots",        "release_item",       "release_item_of_round",
      "want_item",      "await_turn_before", "sync_warpgroup",     "mark_tile",
      "mark_end",       "find_first_tile",   "await_turn_of_slot", "release_added"};
  if (s.kind == Kind::Call) return std::ranges::count(kCalls, s.label) > 0;
  if (s.kind == Kind::When) return s.label == "no_panels" || std::ranges::all_of(s.body, may_go_unseen);
  if (s.kind == Kind::Fill) return s.form.starts_with("ones");
  if (s.kind == Kind::Mask) return s.form == "spoilt";  // D that is no number
  return std::ranges::count(kUnseen, s.kind) > 0;
}

// Is it what is done for gradients of tensors that are read in tiles, which the interpreter does not have?
bool is_of_gradient_tiles(const Body& body) {
  return std::ranges::any_of(body, [](const Statement& s) { return s.label == "put_gradients"; });
}
bool waits_for_gradient_tiles(const Site& site) {
  const Statement& s = site.statement();
  if (s.kind == Kind::When) return is_of_gradient_tiles(s.body);
  return s.kind == Kind::Wait && site.at + 2 < site.body->size() && (*site.body)[site.at + 2].label == "put_gradients";
}

// Blocks of a cluster that make no column of dQ are not drawn.
bool is_of_block_without_columns(Program& program, const Site& site) {
  const Site when = find_site(program, program.body, Kind::When, "no_panels");
  return when && site.body == &when.statement().body;
}

// Where all is made at once, all products are waited for together: one group does for two.
bool joins_groups(const Program& program, const Statement& s) {
  const Statement* step = find_body(program, "step");
  return s.kind == Kind::Commit && step &&
         std::ranges::any_of(step->body, [](const Statement& s) { return s.label == "prefetch"; });
}

Mutations mutations_of(std::size_t step) { return {cases(), testing::interpret_backward, sites_of, step}; }

TEST(HopperBackwardProgram, AStatementLessIsSeen) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 27 : 1);
  mutations.try_all([](Program& program, const Site& site, bool& is_excused) {
    is_excused = waits_for_gradient_tiles(site) || is_of_block_without_columns(program, site);
    const Statement removed = site.take(1).front();
    is_excused |= may_go_unseen(removed) || testing::begins_otherwise(removed) || joins_groups(program, removed);
    return fmt::format("{} {}", describe(program, removed), removed.form);
  });
  mutations.expect_none_unseen();
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 20 : 800);
}

// Neighbours may change sites where neither needs the other.
TEST(HopperBackwardProgram, NeighboursThatChangeSites) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 48 : 4);
  mutations.exchange_neighbours(may_go_unseen);
  mutations.expect_unseen_at_most(58);
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 4 : 100);
}

TEST(HopperBackwardProgram, AnotherAttributeIsSeen) {
  Mutations mutations = mutations_of(FLASHJIT_SANITIZED ? 6 : 1);
  mutations.try_all([](Program& program, const Site& site, bool& is_excused) -> std::string {
    Statement& s = site.statement();
    is_excused = waits_for_gradient_tiles(site);
    return testing::change_attributes(program, s);
  });
  mutations.expect_none_unseen();
  EXPECT_GT(mutations.seen, FLASHJIT_SANITIZED ? 40 : 300);
}

}  // namespace
}  // namespace flashjit
