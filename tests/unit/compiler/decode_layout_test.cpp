// Parts of numerics=batch_invariant: their sizes, and the room for them.
#include "templates/decode/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace flashjit {
namespace {

KernelConfig config_with(int warps, int tile_kv) {
  KernelConfig c = {};
  c.warps = warps;
  c.tile_kv = tile_kv;
  return c;
}

int parts_of(const KernelConfig& c, int keys) {
  const int shift = part_shift(c, round_up(keys, c.tile_kv));
  return (keys + (1 << shift) - 1) >> shift;
}

TEST(FixedParts, OnePerBlockOfATeamAndThenMoreAndLonger) {
  const KernelConfig c = config_with(8, 16);
  for (const int keys : {1024, 2048, 4096, 8192}) EXPECT_EQ(parts_of(c, keys), 1 << kFewPartsShift) << keys;
  EXPECT_EQ(parts_of(c, 100), 1);
  EXPECT_EQ(parts_of(c, 65536), 64);
  EXPECT_EQ(part_shift(c, 131072), kLongPartShift + 1);
}

TEST(FixedParts, ThereIsRoomForThoseOfFewerKeys) {
  for (const auto& [warps, tile_kv] : {std::pair{8, 16}, {8, 32}, {4, 16}, {16, 32}}) {
    const KernelConfig c = config_with(warps, tile_kv);
    int most = 0;
    for (int keys = 1; keys <= 300000; keys += keys < 3000 ? 1 : 509) {
      most = std::max(most, parts_of(c, keys));
      ASSERT_GE(most_parts(c, keys), most) << keys << " keys, " << warps << " warps of " << tile_kv;
    }
  }
}

}  // namespace
}  // namespace flashjit
