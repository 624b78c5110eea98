// How the keys of a call are cut where parts have many rows: into ranges, or into fixed parts (templates/decode/layout.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "compiler/plan.h"
#include "compiler/spec/target.h"
#include "templates/mla/layout.h"

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

// ---- numerics=batch_invariant: parts of a row tile, which its own keys say ----

KernelConfig fixed_config(int rows) {
  KernelConfig c = {};
  c.tile_q = rows;
  c.tile_kv = kMlaKeys;
  c.decode.fixed_parts = true;
  return c;
}

TEST(MlaFixedParts, AreWholeTilesAndTakeLongerThanToStoreThem) {
  for (const int rows : {64, 128}) {
    const KernelConfig c = fixed_config(rows);
    for (int tiles = 1; tiles <= 4096; ++tiles) {
      const int keys = 1 << part_shift(c, tiles * kMlaKeys);
      ASSERT_EQ(keys % kMlaKeys, 0);
      ASSERT_GE(keys / kMlaKeys, 2 * kMostLead) << tiles;
    }
    EXPECT_EQ(part_shift(c, 4096), 9);
    EXPECT_EQ(part_shift(c, 8192), kLongPartShift);
    EXPECT_EQ(part_shift(c, 131072), kLongPartShift + 1);
  }
}

TEST(MlaFixedParts, HaveRoomWhateverTheirSequencesHave) {
  const KernelConfig c = fixed_config(64);
  int most = 0;
  for (int tiles = 1; tiles <= 4096; ++tiles) {
    const int keys = tiles * kMlaKeys, shift = part_shift(c, keys);
    most = std::max(most, (keys + (1 << shift) - 1) >> shift);
    ASSERT_GE(most_parts(c, keys), most) << keys;
  }
}

std::int64_t workspace_of(std::string_view text, std::int64_t batch) {
  const auto spec = parse_spec(text);
  EXPECT_TRUE(spec);
  const auto plan = make_plan(*spec, **find_target("sm_90a"), *parse_schedule("family=mla,tile_q=64"));
  EXPECT_TRUE(plan) << plan.error().message;
  return bytes_of(plan->workspace, {.batch = batch, .q_len = 1, .k_len = 8192, .q_tokens = batch});
}

TEST(MlaFixedParts, HaveAPlaceEach) {
  const std::string spec = "fwd bf16 d=576/512 heads=64/1 layout=paged(64) q_len=1 v_in_k";
  EXPECT_EQ(workspace_of(spec, 3), workspace_of(spec, 60)) << "ranges have places, whatever the call has";
  const std::int64_t part = 4 * 64 * (512 + kRowState);
  EXPECT_EQ(workspace_of(spec + " numerics=batch_invariant", 3), 3 * 8 * part);
  EXPECT_EQ(workspace_of(spec + " numerics=batch_invariant", 60), 60 * 8 * part);
}

}  // namespace
}  // namespace flashjit
