// How the keys of a call are cut into ranges where parts have many rows (templates/decode/layout.h).
#include <gtest/gtest.h>

#include <algorithm>

#include "templates/decode/layout.h"

namespace flashjit {
namespace {

// The tiles of keys that ranges have, found by walking all steps: the first steps of a row tile lead into it and have no keys.
struct Walk {
  int keys = 0, fewest = 1 << 30;  // of all ranges; of one
  int longest = 0;                 // the most steps of a range
};
Walk walk(const RangeCut& cut, int of_tile, int row_tiles) {
  Walk walked;
  const int of_all = row_tiles * (of_tile + cut.lead);
  for (int range = 0; range < cut.count; ++range) {
    const int longer = of_all % cut.count, steps = of_all / cut.count;
    const int begin = range * steps + std::min(range, longer), end = begin + steps + (range < longer ? 1 : 0);
    int keys = 0;
    for (int step = begin; step < end; ++step) keys += step % (of_tile + cut.lead) >= cut.lead;
    walked.keys += keys;
    walked.fewest = std::min(walked.fewest, keys);
    walked.longest = std::max(walked.longest, end - begin);
  }
  return walked;
}

TEST(MlaCut, EachRangeHasKeysAndAllKeysHaveARange) {
  for (const int most : {1, 4, 57, 66, 132}) {
    for (int of_tile = 1; of_tile <= 190; of_tile += 7) {
      for (const int row_tiles : {1, 2, 3, 12, 40, 96, 300}) {
        const RangeCut cut = cut_of_large_parts(of_tile, of_tile * row_tiles, most);
        ASSERT_LE(cut.count, most);
        const Walk walked = walk(cut, of_tile, row_tiles);
        ASSERT_EQ(walked.keys, of_tile * row_tiles) << of_tile << " x " << row_tiles << " in " << most;
        ASSERT_GT(walked.fewest, 0) << of_tile << " x " << row_tiles << " in " << most;
      }
    }
  }
}

TEST(MlaCut, RowTilesThatFitStayWhole) {
  const RangeCut whole = cut_of_large_parts(128, 64 * 128, 66), two = cut_of_large_parts(64, 128 * 64, 66);
  EXPECT_EQ(whole.count, 64);
  EXPECT_EQ(two.count, 64);
  EXPECT_EQ(whole.lead + two.lead, 0);
}

TEST(MlaCut, RangesThatBeginARowTileHaveFewerKeys) {
  const RangeCut cut = cut_of_large_parts(94, 12 * 94, 66);
  EXPECT_EQ(cut.count, 66);
  EXPECT_EQ(cut.lead, kMostLead);
  EXPECT_EQ(walk(cut, 94, 12).longest, 18);
}

TEST(MlaCut, RangesOfShortCallsHaveTwoTilesAndOthersFour) {
  EXPECT_EQ(cut_of_large_parts(32, 32, 66).count, 16);
  EXPECT_EQ(cut_of_large_parts(128, 128, 66).count, 32);
  EXPECT_EQ(cut_of_large_parts(0, 0, 66).count, 1);
}

}  // namespace
}  // namespace flashjit
