#include "compiler/schedule.h"

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
      {"family=hopper", "family: `hopper` is none of sync, host"},
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

}  // namespace
}  // namespace flashjit
