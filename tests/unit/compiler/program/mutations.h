// Changes programs, one place at a time, and counts who sees it.
#pragma once

#include <cstdio>
#include <functional>
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

using Interpret = std::string (*)(const Program& program, const Scenario& scenario);
inline std::string find_fault(const Program& program, Interpret interpret) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    const Scenario scenario = {{{3, 1}, {1, 1}, {0, 0}, {9, 2}, {2, 2}, {6, 1}, {5, 1}}, seed};
    if (const std::string wrong = interpret(program, scenario); !wrong.empty()) return wrong;
  }
  return {};
}

// Every statement in a body, and in what it holds.
inline void collect(Body& body, std::vector<Place>& out) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    out.push_back({&body, i});
    collect(body[i].body, out);
  }
}

struct Mutations {
  std::vector<Case> cases;
  Interpret interpret;
  std::function<std::vector<Place>(Program&)> places_of;
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
      const std::size_t count = places_of(whole).size();
      for (std::size_t i = 0; i < count; ++i) {
        Program program = plan->program;
        bool is_excused = false;
        const std::string changed = change(program, places_of(program)[i], is_excused);
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
  void expect_none_unseen() const { EXPECT_TRUE(unseen.empty()) << fmt::format("{}", fmt::join(unseen, "\n")); }
};

}  // namespace flashjit::testing
