// The sizes of buffers and grids, from their rules.
#include "compiler/launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "templates/decode/layout.h"

namespace flashjit {
namespace {

constexpr CallSizes kSizes = {.batch = 3, .q_len = 130, .k_len = 2049, .q_tokens = 390, .k_tokens = 6147};

TEST(Launches, Items) {
  EXPECT_EQ(items_of({.queries = 64, .heads = 4}, kSizes), 3 * 4 * 3);
  EXPECT_EQ(items_of({.queries = 130, .heads = 4}, kSizes), 4 * 3);
  EXPECT_EQ(items_of({.queries = 64, .keys = 1024, .heads = 2}, kSizes), 3 * 3 * 2 * 3);
  EXPECT_EQ(items_of({.keys = 2048, .heads = 2}, kSizes), 2 * 2 * 3) << "uncut along the queries";
  EXPECT_EQ(items_of({}, kSizes), 3);
  EXPECT_EQ(items_of({.pieces = 7, .of_item = 128}, kSizes), (390 * 7 + 127) / 128) << "of all queries";
  // The tokens of all sequences fill six whole tiles, and each may have one in part.
  EXPECT_EQ(items_of({.queries = 64, .heads = 4, .numbered = true}, kSizes), (6 + 3) * 4);
  EXPECT_EQ(items_of({.queries = 64, .heads = 4, .numbered = true}, {.batch = 3, .q_len = 0}), 0);
  EXPECT_EQ(items_of({.queries = 64}, {.batch = 3, .q_len = 0}), 0);
  EXPECT_EQ(items_of({.queries = 64}, {.batch = 0, .q_len = 5}), 0);
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(items_of({.queries = 1, .keys = 1}, {.batch = 1, .q_len = huge, .k_len = huge}), std::int64_t{1} << 62);
}

// What the comment of WorkspaceBuffer promises: partial results of a split, and accumulators of dQ.
TEST(Launches, BuffersThatAreNeededNext) {
  constexpr int kHeads = 8, kDim = 128;
  const Extent batch{&CallSizes::batch}, queries{&CallSizes::q_len};
  const WorkspaceBuffer partials = {
      "partials", "float", 4 * kHeads * kDim, {batch, queries, {&CallSizes::k_len, 1024, true}}};
  EXPECT_EQ(bytes_of(partials, kSizes), 4 * 8 * 128 * 3 * 130 * 3);  // 2049 keys: three splits
  const WorkspaceBuffer fixed = {"partials", "float", 4 * kHeads * kDim * 16, {batch, queries}};
  EXPECT_EQ(bytes_of(fixed, kSizes), 16 * 4 * 8 * 128 * 3 * 130);
  const WorkspaceBuffer dq = {"dq", "float", 4 * kHeads * kDim, {batch, {&CallSizes::q_len, 64}}};
  EXPECT_EQ(bytes_of(dq, kSizes), 4 * 8 * 128 * 3 * 192);
  const WorkspaceBuffer packed_dq = {"dq", "float", 4 * kHeads * kDim, {{&CallSizes::q_tokens}}};
  EXPECT_EQ(bytes_of(packed_dq, kSizes), 4 * 8 * 128 * 390);
}

TEST(Launches, BuffersFollowEachOtherAligned) {
  const std::vector<WorkspaceBuffer> workspace = {{"one", "float", 1, {{&CallSizes::batch}}},
                                                  {"none", "float", 4, {{&CallSizes::k_len}}},
                                                  {"two", "float", 100, {{&CallSizes::batch}}}};
  const CallSizes sizes = {.batch = 3};
  EXPECT_EQ(offset_of(workspace, 0, sizes), 0);
  EXPECT_EQ(offset_of(workspace, 1, sizes), 256);
  EXPECT_EQ(offset_of(workspace, 2, sizes), 256);
  EXPECT_EQ(bytes_of(workspace, sizes), 256 + 512);
  EXPECT_EQ(bytes_of(std::vector<WorkspaceBuffer>(), sizes), 0);
}

TEST(Launches, SizesThatNoMemoryHas) {
  const std::int64_t huge = std::int64_t{1} << 40, most = std::int64_t{1} << 62;
  const CallSizes sizes = {.batch = huge, .q_len = huge, .k_len = huge};
  const Extent batch{&CallSizes::batch}, queries{&CallSizes::q_len}, keys{&CallSizes::k_len, 64};
  const WorkspaceBuffer buffer = {"scores", "float", 4, {batch, queries, keys}};
  EXPECT_EQ(bytes_of(buffer, sizes), most);
  EXPECT_EQ(bytes_of(std::vector<WorkspaceBuffer>(3, buffer), sizes), most);
}

TEST(Launches, FactorsThatAreNoTiles) {
  const Extent pairs{&CallSizes::q_len, 1, false, [](std::int64_t n) { return n / 2; }};
  EXPECT_EQ(bytes_of(WorkspaceBuffer{"pairs", "float", 4, {{&CallSizes::batch}, pairs}}, {.batch = 3, .q_len = 11}),
            60);
}

// Parts of decode with numerics=batch_invariant: there is room for those of every length up to the capacity, and a
// part is as long for a sequence whatever the capacity.
TEST(Launches, PartsOfEveryLengthFit) {
  for (const auto& [warps, tile_kv] : {std::pair{8, 16}, {8, 32}, {2, 16}, {16, 32}}) {
    KernelConfig c;
    c.warps = warps, c.tile_kv = tile_kv;
    int most = 0;
    for (int keys = 1; keys <= 300000; keys += 1 + keys / 50) {
      const int part = 1 << part_shift(c, keys), parts = (keys + part - 1) / part;
      EXPECT_EQ(part % (warps * tile_kv), 0);
      most = std::max(most, parts);
      ASSERT_GE(most_parts(c, keys), most) << keys << " keys, " << warps << " warps";
      ASSERT_LE(most_parts(c, keys), 8 + keys / 128) << "room that nobody needs";
    }
  }
}

}  // namespace
}  // namespace flashjit
