// Changes programs, one site at a time, and counts who sees it.
#pragma once

#include <cstdio>
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cuda/loop.h"
#include "compiler/plan.h"
#include "compiler/program/barriers.h"
#include "compiler/program/edit.h"
#include "compiler/program/ir_verify_roles.h"
#include "tests/sanitized.h"
#include "tests/unit/compiler/program/interpreter.h"

namespace flashjit::testing {

struct Case {
  std::string spec, pins;
};

// Nothing where no schedule has these pins.
inline std::optional<Plan> plan_of(const Case& c) {
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

// Warps that copy for themselves set up no rings.
inline bool has_producer(const Body& roles) {
  return std::ranges::any_of(roles, [](const Statement& s) {
    return s.kind == Kind::Producer || (s.kind == Kind::Launch && has_producer(s.body));
  });
}

using Interpret = std::string (*)(const Program& program, const Scenario& scenario);
inline std::string find_fault(const Program& program, Interpret interpret) {
  if (has_producer(program.body))
    if (const auto done = check_barriers(program); !done) return done.error().message;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    const Scenario scenario = {{{3, 1}, {1, 1}, {0, 0}, {9, 2}, {2, 2}, {6, 1}, {5, 1}}, seed};
    if (const std::string wrong = interpret(program, scenario); !wrong.empty()) return wrong;
  }
  return {};
}

// Every statement in a body, and in what it holds.
inline void collect(Body& body, std::vector<Site>& out) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    out.push_back({&body, i});
    collect(body[i].body, out);
  }
}

// Every statement of what blocks begin with: what is set up, not who takes which role.
inline void collect_set_up(Body& roles, std::vector<Site>& out) {
  for (Statement& role : roles) {
    if (role.kind == Kind::Launch) collect_set_up(role.body, out);
    if (role.kind != Kind::Entry) continue;
    for (Statement& body : role.body)
      if (body.label.starts_with("set_up")) collect(body.body, out);
  }
}
// Is it set up beside rings? Nothing here sees whether it is.
inline bool begins_otherwise(const Statement& s) {
  constexpr std::string_view kCalls[] = {"clear_redo",       "begin_progress",    "begin_work", "fill_ones",
                                         "clear_end",        "clear_copied",      "init_item",  "init_item_keeping",
                                         "init_item_wanted", "store_dropout_key", "init_turn",  "init_added"};
  if (s.kind == Kind::Call) return std::ranges::count(kCalls, s.label) > 0;
  if (s.kind == Kind::Init && s.form == "slots") return std::ranges::all_of(s.body, begins_otherwise);
  return s.kind == Kind::Init && s.form == "single";
}

// Changes what a statement says about waiting, and about products. Returns what it has changed; empty: there is nothing.
inline std::string change_attributes(const Program& program, Statement& s) {
  const auto one_more = [](const Attribute& a) { return std::get<std::int64_t>(a.value) + 1; };
  const auto other_barrier = [&](const std::string& barrier) -> std::string {
    if (s.kind == Kind::Load) return barrier == "full" ? "copied" : "full";
    return barrier == "full" ? "empty" : "full";
  };
  Attributes changed;
  std::string what;
  for (Attribute a : s.attributes.all()) {
    const std::string_view key = a.key;
    if (key == "pending" || key == "arrivals" || (key == "piece" && s.kind == Kind::Mma))
      a.value = one_more(a), what = key;
    else if (key == "barrier") a.value = other_barrier(print(a.value)), what = key;
    else if (key == "on_top") a.value = std::string(print(a.value) == "true" ? "false" : "true"), what = key;
    EXPECT_TRUE(changed.set(a.key, a.value, a.writer));
  }
  s.attributes = changed;
  return what.empty() ? what : what + " of " + describe(program, s);
}

// A statement, or what it holds.
inline void flatten(const Statement& s, std::vector<const Statement*>& out) {
  if (s.body.empty()) out.push_back(&s);
  for (const Statement& inside : s.body) flatten(inside, out);
}

// Do two neighbours do the same in either order? Neither touches what the other writes, and they are not both about the
// order of products, or of who waits for whom; and what a condition may ask about stays before it. Barriers count the bytes
// of copies whether they expect them yet or not.
inline bool commute(const Program& program, const Statement& a, const Statement& b) {
  const auto is_any = [](const Statement& s, std::initializer_list<Kind> kinds) {
    return std::ranges::count(kinds, s.kind) > 0;
  };
  const auto touches = [&](const Statement& s, int buffer) {
    const Buffer& of = program.buffers[static_cast<std::size_t>(buffer)];
    const auto is_it = [&](int other) {
      return other == buffer || other == of.guard || other == of.given_with || other == of.inside;
    };
    return std::ranges::any_of(s.reads, is_it) || std::ranges::any_of(s.writes, is_it);
  };
  const auto writes_none_of = [&](const Statement& s, const Statement& other) {
    return std::ranges::none_of(s.writes, [&](int buffer) { return touches(other, buffer); });
  };
  const auto orders_products = [&](const Statement& s) {
    return is_any(s, {Kind::Mma, Kind::Fence, Kind::Commit, Kind::Wait, Kind::Keep});
  };
  const auto orders_roles = [&](const Statement& s) {
    return is_any(s, {Kind::Release, Kind::Complete, Kind::Publish, Kind::EndTurn, Kind::BeginTurn, Kind::Barrier});
  };
  const auto do_so = [&](const Statement& one, const Statement& other) {
    if (is_any(one, {Kind::Load, Kind::Expect}) && is_any(other, {Kind::Load, Kind::Expect})) return true;
    if (is_any(one, {Kind::Call, Kind::Return}) || is_any(other, {Kind::Call, Kind::Return})) return false;
    return writes_none_of(one, other) && writes_none_of(other, one) &&
           !(orders_products(one) && orders_products(other)) && !(orders_roles(one) && orders_roles(other));
  };
  const auto decides = [&](const Statement& s) {
    return is_any(s, {Kind::Let, Kind::Mark, Kind::Softmax, Kind::Look});
  };
  if (is_any(a, {Kind::Loop}) || is_any(b, {Kind::Loop})) return false;
  std::vector<const Statement*> of_a, of_b;
  flatten(a, of_a), flatten(b, of_b);
  for (const Statement* one : of_a) {
    if (!b.body.empty() && decides(*one)) return false;
    for (const Statement* other : of_b)
      if ((!a.body.empty() && decides(*other)) || !do_so(*one, *other)) return false;
  }
  return true;
}

struct Mutations {
  std::vector<Case> cases;
  Interpret interpret;
  std::function<std::vector<Site>(Program&)> sites_of;
  std::size_t step = 1;  // every such case
  int tried = 0, seen = 0, excused = 0, printed_alike = 0;
  std::vector<std::string> unseen = {};

  // `change` says what it has changed; empty: there is nothing to change there.
  template <class Change>
  void try_all(const Change& change) {
    for (std::size_t n = 0; n < cases.size(); n += step) {
      const Case& c = cases[n];
      const auto plan = plan_of(c);
      if (!plan) continue;
      const auto text = emit_loop(plan->program);
      ASSERT_TRUE(text) << text.error().message;
      Program whole = plan->program;
      const std::size_t count = sites_of(whole).size();
      for (std::size_t i = 0; i < count; ++i) {
        Program program = plan->program;
        bool is_excused = false;
        const std::string changed = change(program, sites_of(program)[i], is_excused);
        if (changed.empty()) continue;
        ++tried;
        const auto other = emit_loop(program);
        printed_alike += other && *other == *text;
        if (!find_fault(program, interpret).empty()) ++seen;
        else if (is_excused) ++excused;
        else unseen.push_back(fmt::format("{}: {} // {}", changed, c.spec, c.pins));
      }
    }
    ::testing::Test::RecordProperty("tried", tried);
    ::testing::Test::RecordProperty("seen", seen);
    std::printf("%d changes: %d seen, %d that may go unseen, %zu others\n", tried, seen, excused, unseen.size());
    EXPECT_EQ(printed_alike, 0);
  }
  // Exchanges each statement with the next one, where `may_go_unseen` excuses one of them or the two commute.
  void exchange_neighbours(bool (*may_go_unseen)(const Statement&)) {
    try_all([may_go_unseen](Program& program, const Site& site, bool& is_excused) -> std::string {
      if (site.at + 1 >= site.body->size()) return {};
      Statement &a = site.statement(), &b = (*site.body)[site.at + 1];
      if (b.kind == Kind::Otherwise) return {};
      is_excused = may_go_unseen(a) || may_go_unseen(b) || commute(program, a, b) || begins_otherwise(a) ||
                   begins_otherwise(b) || (a.kind == Kind::Init && b.kind == Kind::Init);
      std::swap(a, b);
      return fmt::format("{} before {}", describe(program, a), describe(program, b));
    });
  }
  // Some neighbours that change places are left: a commit that takes a product into another group, all of which are waited
  // for together; conditions that no scenario decides; and calls. There are no more than when this was written.
  void expect_unseen_at_most(std::size_t most) const {
    EXPECT_LE(unseen.size(), most) << fmt::format("{}", fmt::join(unseen, "\n"));
  }
  void expect_none_unseen() const { EXPECT_TRUE(unseen.empty()) << fmt::format("{}", fmt::join(unseen, "\n")); }
};

}  // namespace flashjit::testing
