#include "compiler/spec/schedule.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "compiler/families/family.h"

namespace flashjit {
namespace {

TEST(Schedule, TextForm) {
  const std::pair<const char*, const char*> rows[] = {
      {"", ""},
      {" ", ""},
      {"tile_q=128,tile_kv=64,warps=4,stages=2,q_in=registers",
       "tile_q=128,tile_kv=64,warps=4,stages=2,q_in=registers"},
      {"order=longest_first, unroll_d=4 ,blocks_per_sm=2,q_in=shared,family=sync",
       "family=sync,q_in=shared,blocks_per_sm=2,unroll_d=4,order=longest_first"},
      {"family=host,tile_q=64", "family=host,tile_q=64"},
      {"order=natural,head_tiles=grouped,grid=persistent,row_sum=matrix,reference=first,exclusive=issue,"
       "overlap=qk_pv,q_stages=2,stages=3,warpgroups=3,tile_kv=80,tile_q=192,family=hopper",
       "family=hopper,tile_q=192,tile_kv=80,warpgroups=3,stages=3,q_stages=2,overlap=qk_pv,exclusive=issue,reference=first,"
       "row_sum=matrix,grid=persistent,head_tiles=grouped,order=natural"},
      {"overlap=none,exclusive=none,reference=tile,row_sum=adds,grid=tiles,head_tiles=single",
       "overlap=none,exclusive=none,reference=tile,row_sum=adds,grid=tiles,head_tiles=single"},
      {"exclusive=issue,reference=first", "exclusive=issue,reference=first"},
      {"copies=boxes,stages=2", "stages=2,copies=boxes"},
  };
  for (const auto& [text, canonical] : rows) {
    const auto schedule = parse_schedule(text);
    ASSERT_TRUE(schedule) << text << ": " << schedule.error().message;
    EXPECT_EQ(print(*schedule), canonical);
    const auto again = parse_schedule(print(*schedule));
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, *schedule);
  }
}

TEST(Schedule, Refusals) {
  const std::pair<const char*, const char*> rows[] = {
      {"tile_q", "`tile_q` is not field=value"},
      {"tile_q=", "tile_q: `` is not a whole number"},
      {"tile_q=0", "tile_q: 0 is outside 1..65536"},
      {"tile_q=99999999999999999999", "is not a whole number"},
      {"tile=64", "there is no field `tile`"},
      {"tile_qq=64", "did you mean `tile_q`?"},
      {"warps=4,warps=4", "warps: set twice"},
      {"q_in=smem", "q_in: `smem` is none of shared, registers"},
      {"order=random", "order: `random` is none of natural, longest_first"},
      {"family=volta",
       "family: `volta` is none of hopper, decode, mla, sync_narrow, sync, naive, naive_backward, merge, quantize, "
       "hopper_index, index, hopper_backward, sync_backward, host"},
      {"warpgroups=0", "warpgroups: 0 is outside 1..3"},
      {"warpgroups=4", "warpgroups: 4 is outside 1..3"},
      {"q_stages=3", "q_stages: 3 is outside 1..2"},
      {"q_stages=-1", "q_stages: -1 is outside 1..2"},
      {"overlap=pv", "overlap: `pv` is none of none, qk_pv"},
      {"exclusive=exp", "exclusive: `exp` is none of none, issue"},
      {"reference=previous", "reference: `previous` is none of lazy, tile, first"},
      {"row_sum=shuffles", "row_sum: `shuffles` is none of adds, matrix"},
      {"grid=blocks", "grid: `blocks` is none of tiles, persistent"},
      {"head_tiles=all", "head_tiles: `all` is none of single, grouped"},
      {"warps=4,", "is not field=value"},
  };
  for (const auto& [text, message] : rows) {
    const auto schedule = parse_schedule(text);
    ASSERT_FALSE(schedule) << text;
    EXPECT_EQ(schedule.error().kind, ErrorKind::Invalid);
    EXPECT_NE(schedule.error().message.find(message), std::string::npos) << text << ": " << schedule.error().message;
  }
  EXPECT_FALSE(parse_schedule(std::string(5000, ' ')));
}

TEST(Schedule, FieldsOfFamilies) {
  EXPECT_EQ(fields_of(find_family("host")), "tile_q, tile_kv");
  EXPECT_EQ(fields_of(find_family("sync")),
            "tile_q, tile_kv, warps, stages, q_in, blocks_per_sm, unroll_d, tiles, order");
  const auto foreign = [](const char* text, Family family) { return foreign_field(*parse_schedule(text), family); };
  EXPECT_EQ(foreign("family=sync,tile_q=64,stages=2,order=natural", find_family("hopper")), "");
  EXPECT_EQ(foreign("tile_q=64,q_in=shared", find_family("hopper")), "q_in");
  EXPECT_EQ(foreign("stages=2,row_sum=adds", find_family("sync")), "row_sum");
  EXPECT_EQ(foreign("tile_kv=64,order=natural", find_family("host")), "order");
}

TEST(Schedule, MissingFields) {
  const auto missing = [](const char* text, Family family) { return missing_field(*parse_schedule(text), family); };
  EXPECT_EQ(missing("family=host,tile_q=1,tile_kv=16", find_family("host")), "");
  EXPECT_EQ(missing("family=host,tile_q=1", find_family("host")), "tile_kv");
  EXPECT_EQ(missing("tile_q=1,tile_kv=16", find_family("host")), "family");
  EXPECT_EQ(missing("family=host,tile_q=1,tile_kv=16", find_family("sync")), "warps");
}

TEST(Schedule, RangesHoldForSchedulesMadeInCode) {
  Schedule schedule;
  EXPECT_EQ(outside_range(schedule), "");
  schedule.q_stages = 9;
  EXPECT_EQ(outside_range(schedule), "q_stages: 9 is outside 1..2");
}

// compiler/SCHEDULE.md has a row for each field, and the families that have it.
TEST(ScheduleDoc, FieldsOfFamiliesAreThoseOfTheTable) {
  std::ifstream file(FLASHJIT_TESTS_DIR "/../compiler/SCHEDULE.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::map<std::string, std::vector<std::string>> families_of;
  for (const Family family : families()) {
    std::istringstream fields{std::string(family->fields)};
    for (std::string field; fields >> field;) families_of[field].emplace_back(family->name);
  }
  for (const auto& [field, names] : families_of) {
    std::vector<std::string> others;
    for (const Family family : families())
      if (std::ranges::find(names, family->name) == names.end()) others.emplace_back(family->name);
    const std::string which = others.empty()                 ? "all"
                              : others.size() < names.size() ? fmt::format("all but {}", fmt::join(others, ", "))
                                                             : fmt::format("{}", fmt::join(names, ", "));
    const std::string row = fmt::format("\n| `{}` | {} |", field, which);
    EXPECT_NE(page.find(row), page.npos) << "compiler/SCHEDULE.md has no line that begins:" << row;
  }
}

}  // namespace
}  // namespace flashjit
