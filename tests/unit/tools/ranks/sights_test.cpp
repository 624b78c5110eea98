#include "tools/ranks/sights.h"

#include <gtest/gtest.h>

namespace flashjit {
namespace {

AttentionSpec spec_of(const std::string& mask) {
  const auto spec = parse_spec("fwd bf16 d=64 heads=4" + (mask.empty() ? "" : " mask=\"" + mask + "\""));
  EXPECT_TRUE(spec) << mask;
  return *spec;
}

// Counts the scores that the mask leaves, position by position.
double counted(std::int64_t length, int ranks, TokenOrder order, int queries, int keys, auto sees) {
  const std::int64_t run = length / (2 * ranks);
  const auto owner = [&](std::int64_t at) {
    const auto place = static_cast<int>(at / run);
    return order == TokenOrder::Contiguous ? place / 2 : place < ranks ? place : 2 * ranks - 1 - place;
  };
  double seen = 0;
  for (std::int64_t q = 0; q < length; ++q)
    for (std::int64_t k = 0; k < length; ++k) seen += owner(q) == queries && owner(k) == keys && sees(q, k);
  return seen / static_cast<double>(4 * run * run);
}

TEST(Sights, SharesAreThoseOfTheMask) {
  constexpr std::int64_t kLength = 256;
  constexpr int kRanks = 4;
  const std::pair<const char*, bool (*)(std::int64_t, std::int64_t)> masks[] = {
      {"", [](std::int64_t, std::int64_t) { return true; }},
      {"causal", [](std::int64_t q, std::int64_t k) { return k <= q; }},
      {"causal & window(40, 0)", [](std::int64_t q, std::int64_t k) { return k <= q && q - k <= 40; }}};
  for (const auto& [mask, sees] : masks) {
    for (const TokenOrder order : {TokenOrder::Contiguous, TokenOrder::Zigzag}) {
      const Sights sights(spec_of(mask), {1, kLength, kLength}, kRanks, order);
      for (int queries = 0; queries < kRanks; ++queries) {
        for (int keys = 0; keys < kRanks; ++keys) {
          const double share = counted(kLength, kRanks, order, queries, keys, sees);
          EXPECT_NEAR(sights.seen(queries, keys), share, 0.03) << mask << " " << queries << " " << keys;
          EXPECT_EQ(sights.needed(queries, keys) > 0, share > 0) << mask << " " << queries << " " << keys;
          EXPECT_LE(sights.needed(queries, keys), 1);
        }
      }
    }
  }
}

TEST(Sights, ZigzagGivesAllRanksTheSameOfACausalMask) {
  const Sights zigzag(spec_of("causal"), {1, 65536, 65536}, 8, TokenOrder::Zigzag);
  const Sights contiguous(spec_of("causal"), {1, 65536, 65536}, 8, TokenOrder::Contiguous);
  EXPECT_NEAR(zigzag.most_seen(), 0.5, 0.001);
  EXPECT_NEAR(contiguous.most_seen(), 15.0 / 16, 0.001);
}

TEST(Sights, AWindowNeedsNeighboursAlone) {
  const Sights sights(spec_of("causal & window(1024, 0)"), {1, 65536, 65536}, 8, TokenOrder::Contiguous);
  for (int queries = 0; queries < 8; ++queries)
    for (int keys = 0; keys < 8; ++keys) {
      const double needed = sights.needed(queries, keys);
      if (keys == queries - 1) {
        EXPECT_NEAR(needed, 1024.0 / 8192, 0.01);
      } else if (keys != queries) {
        EXPECT_EQ(needed, 0) << queries << " " << keys;
      }
    }
}

TEST(Sights, MasksThatReadNumbersHideNothing) {
  const Sights sights(spec_of("document(doc)"), {1, 256, 256}, 2, TokenOrder::Zigzag);
  EXPECT_DOUBLE_EQ(sights.seen(0, 1), 1);
  EXPECT_DOUBLE_EQ(sights.needed(0, 1), 1);
}

}  // namespace
}  // namespace flashjit
