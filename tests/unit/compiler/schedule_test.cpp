#include "compiler/spec/schedule.h"

#include <gtest/gtest.h>

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
      {"order=natural,heads=packed,cluster=2,grid=persistent,row_sum=matrix,exp_fma=0,reference=previous,exclusive=softmax,"
       "overlap=qk_pv,q_stages=2,stages=3,warpgroups=3,tile_kv=80,tile_q=192,family=hopper",
       "family=hopper,tile_q=192,tile_kv=80,warpgroups=3,stages=3,q_stages=2,overlap=qk_pv,exclusive=softmax,reference=previous,"
       "exp_fma=0,row_sum=matrix,grid=persistent,cluster=2,heads=packed,order=natural"},
      {"overlap=none,exclusive=none,reference=tile,row_sum=adds,grid=tiles,heads=single",
       "overlap=none,exclusive=none,reference=tile,row_sum=adds,grid=tiles,heads=single"},
      {"exclusive=issue,reference=first", "exclusive=issue,reference=first"},
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
      {"family=volta", "family: `volta` is none of sync, host, hopper"},
      {"warpgroups=0", "warpgroups: 0 is outside 1..3"},
      {"warpgroups=4", "warpgroups: 4 is outside 1..3"},
      {"q_stages=3", "q_stages: 3 is outside 1..2"},
      {"exp_fma=5", "exp_fma: 5 is outside 0..4"},
      {"exp_fma=-1", "exp_fma: -1 is outside 0..4"},
      {"cluster=4", "cluster: 4 is outside 1..2"},
      {"overlap=pv", "overlap: `pv` is none of none, qk_pv"},
      {"exclusive=exp", "exclusive: `exp` is none of none, issue, softmax"},
      {"reference=lazy", "reference: `lazy` is none of tile, previous, first"},
      {"row_sum=shuffles", "row_sum: `shuffles` is none of adds, matrix"},
      {"grid=blocks", "grid: `blocks` is none of tiles, persistent"},
      {"heads=all", "heads: `all` is none of single, packed"},
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
  EXPECT_EQ(fields_of(Family::Host), "tile_q, tile_kv");
  EXPECT_EQ(fields_of(Family::Sync), "tile_q, tile_kv, warps, stages, q_in, blocks_per_sm, unroll_d, order");
  const auto foreign = [](const char* text, Family family) { return foreign_field(*parse_schedule(text), family); };
  EXPECT_EQ(foreign("family=sync,tile_q=64,stages=2,order=natural", Family::Hopper), "");
  EXPECT_EQ(foreign("tile_q=64,q_in=shared", Family::Hopper), "q_in");
  EXPECT_EQ(foreign("stages=2,exp_fma=0", Family::Sync), "exp_fma");
  EXPECT_EQ(foreign("tile_kv=64,order=natural", Family::Host), "order");
}

TEST(Schedule, MissingFields) {
  const auto missing = [](const char* text, Family family) { return missing_field(*parse_schedule(text), family); };
  EXPECT_EQ(missing("family=host,tile_q=1,tile_kv=16", Family::Host), "");
  EXPECT_EQ(missing("family=host,tile_q=1", Family::Host), "tile_kv");
  EXPECT_EQ(missing("tile_q=1,tile_kv=16", Family::Host), "family");
  EXPECT_EQ(missing("family=host,tile_q=1,tile_kv=16", Family::Sync), "warps");
}

TEST(Schedule, RangesHoldForSchedulesMadeInCode) {
  Schedule schedule;
  EXPECT_EQ(outside_range(schedule), "");
  schedule.exp_fma = 9;
  EXPECT_EQ(outside_range(schedule), "exp_fma: 9 is outside 0..4");
}

}  // namespace
}  // namespace flashjit
