// What a tuning chooses from.
#include "autotune/search/space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "autotune/measure/check_outputs.h"
#include "compiler/choice/candidates.h"
#include "runtime/tuned/records.h"
#include "compiler/spec/half.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

struct Made {
  Plan plan;
  Shape shape;
  SearchSpace space;
};

Made space_for(const std::string& spec, const std::string& target, const std::string& pins = "") {
  auto plan = plan_spec(spec, target, pins);
  EXPECT_TRUE(plan) << plan.error().message;
  const Shape shape = assumed_shape(plan->spec);
  SearchSpace space = space_of(plan->spec, plan->target, *parse_schedule(pins), plan->tiles, shape, plan->schedule);
  return {std::move(*plan), shape, std::move(space)};
}

TEST(Space, NothingIsLostAndEverythingLeftIsLegal) {
  for (const char* target : {"sm_80", "sm_90a", "x86-64-v3"}) {
    for (const char* spec : {"fwd bf16 d=128 heads=16", "fwd bf16 d=40 heads=16/4 mask=\"causal\"",
                             "fwd fp16 d=256 heads=4 score=\"alibi\""}) {
      const Made made = space_for(spec, target);
      int cut = 0;
      for (const CutReason& reason : made.space.cut) cut += reason.count;
      EXPECT_EQ(made.space.size, cut + static_cast<int>(made.space.schedules.size())) << spec << target;
      for (const Candidate& c : made.space.schedules)
        EXPECT_EQ(why_illegal(made.plan.spec, made.plan.target, c.schedule), "");
      const auto is_default = [&](const Candidate& c) { return c.schedule == made.plan.schedule; };
      EXPECT_EQ(std::ranges::count_if(made.space.schedules, is_default), 1) << spec << target;
    }
  }
}

TEST(Space, ReasonsAreCountedWithoutTheirNumbers) {
  const Made made = space_for("fwd bf16 d=256 heads=16", "sm_80");
  ASSERT_FALSE(made.space.cut.empty());
  for (const CutReason& reason : made.space.cut) {
    const std::size_t digit = reason.why.find_first_of("0123456789");
    EXPECT_TRUE(digit == std::string::npos || reason.why.substr(0, digit).ends_with("sm_")) << reason.why;
  }
  EXPECT_LT(made.space.cut.size(), 12u);
  EXPECT_GT(made.space.cut.front().count, 10);
}

TEST(Space, PinsHold) {
  const Made made = space_for("fwd bf16 d=128 heads=16", "sm_90a", "tile_kv=64");
  for (const Candidate& c : made.space.schedules) EXPECT_EQ(c.schedule.tile_kv, 64);
  for (const Candidate& c : neighbours(made.plan.spec, made.plan.target, *parse_schedule("tile_kv=64"), made.plan.tiles,
                                       made.shape, made.plan.schedule)) {
    EXPECT_EQ(c.schedule.tile_kv, 64);
  }
}

TEST(Space, ANumericsClassIsNeverLeft) {
  for (const char* numerics : {"deterministic", "batch_invariant"}) {
    const Made made = space_for(std::string("fwd bf16 d=128 heads=16 numerics=") + numerics, "sm_90a");
    EXPECT_GT(made.space.schedules.size(), 1u);
    for (const Candidate& c : made.space.schedules)
      EXPECT_EQ(changed_numerics(made.plan.schedule, c.schedule), "") << print(c.schedule);
    for (const Candidate& c :
         neighbours(made.plan.spec, made.plan.target, {}, made.plan.tiles, made.shape, made.plan.schedule)) {
      EXPECT_EQ(changed_numerics(made.plan.schedule, c.schedule), "") << print(c.schedule);
    }
  }
}

TEST(Space, NeighboursDifferInOneFieldAndAreLegal) {
  const Made made = space_for("fwd bf16 d=128 heads=16 mask=\"causal\"", "sm_90a");
  const auto near = neighbours(made.plan.spec, made.plan.target, {}, made.plan.tiles, made.shape, made.plan.schedule);
  EXPECT_GT(near.size(), 3u);
  for (const Candidate& c : near) {
    EXPECT_NE(c.schedule, made.plan.schedule);
    EXPECT_EQ(why_illegal(made.plan.spec, made.plan.target, c.schedule), "") << print(c.schedule);
  }
}

TEST(Space, TheShortlistIsDiverse) {
  const Made made = space_for("fwd bf16 d=128 heads=16", "sm_90a");
  const std::vector<Schedule> taken = {made.space.schedules.front().schedule};
  const auto list = shortlist(made.space.schedules, 8, taken);
  ASSERT_EQ(list.size(), 8u);
  std::map<std::tuple<int, int>, int> shapes;
  for (const std::size_t i : list) {
    const Schedule& s = made.space.schedules[i].schedule;
    EXPECT_NE(s, taken.front());
    EXPECT_LE(++shapes[std::tuple(*s.tile_q, *s.tile_kv)], s.family == find_family("sync") ? 4 : 2);
  }
  EXPECT_GE(shapes.size(), 4u);
  EXPECT_TRUE(std::ranges::is_sorted(list));
}

ProblemData data_with(const std::string& spec_text, float factor, std::int64_t broken = -1) {
  auto spec = parse_spec(spec_text);
  auto shape = parse_shape("q=64", *spec);
  auto data = ProblemData::create(*spec, *shape, {}, 1);
  EXPECT_TRUE(data);
  for (NamedTensor& t : data->tensors()) {
    if (t.role != NamedTensor::Role::Output) continue;
    const auto count = static_cast<std::int64_t>(t.bytes.size()) / size_of(t.dtype);
    for (std::int64_t i = 0; i < count; ++i) {
      store_float(t.dtype, t.bytes.data(), i, i == broken ? 1e3f : factor * static_cast<float>(i % 17 - 8));
    }
  }
  return std::move(*data);
}

// Lists of 20 keys; the last entries of each are those of `behind`.
ProblemData lists_with(std::vector<std::int32_t> behind, std::int32_t count = 20) {
  auto spec = parse_spec("index bf16 d=16 heads=2/1 select=keys(20)");
  auto data = ProblemData::create(*spec, *parse_shape("q=64", *spec), {}, 1);
  EXPECT_TRUE(data);
  std::vector<std::int32_t> values, list(20 - behind.size());
  std::iota(list.begin(), list.end(), 7);
  list.insert(list.end(), behind.begin(), behind.end());
  for (int i = 0; i < 64; ++i) values.insert(values.end(), list.begin(), list.end());
  std::memcpy(data->find("key_index")->bytes.data(), values.data(), values.size() * sizeof(std::int32_t));
  const std::vector<std::int32_t> counts(64, count);
  std::memcpy(data->find("key_count")->bytes.data(), counts.data(), counts.size() * sizeof(std::int32_t));
  return std::move(*data);
}

TEST(CheckOutputs, ListsMayEndInOtherKeysAndNoMore) {
  ProblemData expected = lists_with({50});
  const auto outputs = outputs_of(expected);
  const auto wrong = [&](ProblemData got) { return compare_outputs(outputs, got); };
  EXPECT_EQ(wrong(lists_with({50})), "");
  EXPECT_EQ(wrong(lists_with({63})), "") << "one of 20 is another key, whose score may be as large";
  EXPECT_NE(wrong(lists_with({60, 61, 62})).find("1088 of 1280 keys"), std::string::npos);
  EXPECT_NE(wrong(lists_with({-1})).find("list 0 has 19 keys, and 20"), std::string::npos);
  EXPECT_NE(wrong(lists_with({3})).find("not in order"), std::string::npos);
  EXPECT_NE(wrong(lists_with({50}, 19)).find("key_count: element 0 is 19, and 20"), std::string::npos);
}

TEST(CheckOutputs, RoundingPassesAndMoreDoesNot) {
  for (const char* spec : {"fwd bf16 d=16 heads=2", "fwd fp16 d=16 heads=2", "fwd fp32 d=16 heads=2 lse=ln"}) {
    ProblemData expected = data_with(spec, 1), rounded = data_with(spec, 1.00001f), off = data_with(spec, 1.1f),
                one = data_with(spec, 1, 100);
    const auto outputs = outputs_of(expected);
    EXPECT_EQ(compare_outputs(outputs, expected), "");
    EXPECT_EQ(compare_outputs(outputs, rounded), "");
    EXPECT_NE(compare_outputs(outputs, off), "") << spec;
    EXPECT_NE(compare_outputs(outputs, one), "") << spec;
    ProblemData unwritten = data_with(spec, 1);
    unwritten.poison();
    EXPECT_NE(compare_outputs(outputs, unwritten).find("NaN"), std::string::npos);
  }
}

}  // namespace
}  // namespace flashjit
