// What nobody has listed as honoured is refused by name, by every family and by the reference.
#include "compiler/spec/operations/options.h"

#include <algorithm>
#include <array>
#include <string>

#include <gtest/gtest.h>

#include "autotune/reference/reference.h"
#include "compiler/choice/candidates.h"
#include "compiler/families/family.h"
#include "compiler/plan.h"
#include "runtime/compile/request.h"

namespace flashjit {
namespace {

AttentionSpec spec_for(Family family) {
  AttentionSpec spec;
  spec.d_qk = spec.d_v = 64;
  for (const Operation operation :
       {Operation::Forward, Operation::Backward, Operation::Merge, Operation::Quantize, Operation::Index}) {
    spec.operation = operation;
    if (family->computes(spec)) break;
  }
  return spec;
}

const Target& target_of(Family family) { return **find_target(family->gpu ? "sm_90a" : "x86-64-v3"); }

bool lists(Family family, std::string_view option) {
  return std::ranges::find(family->options, option) != family->options.end();
}

// A flag that was added to spec and config by the recipe of the READMEs: a row of the table, and no loop that reads it.
TEST(Options, AnAddedFlagIsRefusedEverywhere) {
  constexpr std::array kWithOneMore = {SpecFlag{"added", &AttentionSpec::rotate, &KernelConfig::rotate}};
  for (const Family family : families()) {
    AttentionSpec spec = spec_for(family);
    EXPECT_EQ(first_unhonoured(spec, family->options, kWithOneMore), "") << family->name;
    spec.rotate = true;
    EXPECT_EQ(first_unhonoured(spec, family->options, kWithOneMore), "added") << family->name;
  }
  AttentionSpec spec;
  spec.rotate = true;
  EXPECT_EQ(first_unhonoured(spec, reference::honoured_options(), kWithOneMore), "added");
}

TEST(Options, AFamilyNamesWhatItDoesNotList) {
  int refused = 0;
  for (const Family family : families()) {
    for (const SpecFlag& flag : kSpecFlags) {
      AttentionSpec spec = spec_for(family);
      spec.*flag.of_spec = true;
      const std::string why = why_not_family(family, spec, target_of(family));
      const std::string expected = "does not honour " + std::string(flag.name);
      EXPECT_EQ(why.find(expected) != std::string::npos, !lists(family, flag.name)) << family->name << ": " << why;
      refused += !lists(family, flag.name);
    }
  }
  EXPECT_GT(refused, 20);
}

TEST(Options, RefusalsAreInWordsOfSpecs) {
  struct Row {
    const char *family, *spec, *words;
  };
  for (const Row& row : {
           Row{"decode", "fwd bf16 d=576/512 heads=4/1 kv=latent656 v_in_k",
               "rows of latents (kv=latent656, kv=latent584)"},
           Row{"naive", "fwd e4m3 d=64 scales=block(64)", "scales=block"},
           Row{"decode", "fwd bf16 d=64 q_len=1 dropout=0.1", "dropout="},
           Row{"merge", "merge bf16 d=64 heads=4 lse=ln", ""},
       }) {
    const auto spec = parse_spec(row.spec);
    ASSERT_TRUE(spec) << row.spec << ": " << spec.error().message;
    const auto family = std::ranges::find(families(), std::string_view(row.family), [](Family f) { return f->name; });
    ASSERT_NE(family, families().end()) << row.family;
    EXPECT_EQ(first_unhonoured(*spec, (*family)->options), row.words) << row.family << ": " << row.spec;
  }
}

TEST(Options, ASpecThatNoFamilyHonoursIsRefusedByName) {
  for (const char* target : {"sm_80", "sm_90a", "sm_120a"}) {
    for (const char* text : {"fwd bf16 d=64 heads=2", "bwd bf16 d=64 heads=2", "fwd e4m3 d=64 heads=2 q_len=1"}) {
      AttentionSpec spec = *parse_spec(text);
      spec.rotate = true;
      const auto plan = make_plan(spec, **find_target(target));
      ASSERT_FALSE(plan) << target << " " << text;
      EXPECT_EQ(plan.error().kind, ErrorKind::Unsupported) << target;
      EXPECT_TRUE(plan.error().message.starts_with("rotate: no loop for")) << plan.error().message;
    }
  }
}

// With compute= the launches that round Q and K rotate them, and what attends to them knows nothing of it.
TEST(Options, OfSeveralKernelsEachIsAsked) {
  const auto request = Request::parse("fwd bf16 d=64 heads=2 compute=e4m3 rotate", "sm_90a", "");
  ASSERT_TRUE(request) << request.error().message;
  const auto parts = kernels_of(*request);
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->size(), 4u);
  for (const Request& part : *parts) EXPECT_TRUE(plan_spec(part)) << part.text;
}

TEST(Options, ListsHoldNothingElse) {
  const std::vector<std::string_view> all = spec_options();
  const auto check = [&](std::string_view who, std::span<const std::string_view> listed) {
    for (const std::string_view option : listed) {
      EXPECT_NE(std::ranges::find(all, option), all.end()) << who << ": " << option;
      EXPECT_EQ(std::ranges::count(listed, option), 1) << who << ": " << option;
    }
  };
  for (const Family family : families()) check(family->name, family->options);
  check("reference", reference::honoured_options());
  // The reference has to know all that some family computes, or nothing could be said of it.
  for (const Family family : families()) {
    for (const std::string_view option : family->options)
      EXPECT_NE(std::ranges::find(reference::honoured_options(), option), reference::honoured_options().end());
  }
}

}  // namespace
}  // namespace flashjit
