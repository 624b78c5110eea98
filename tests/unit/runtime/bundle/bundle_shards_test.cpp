// A bundle that has shards alone says so, in a format of its own; a whole one has the format that it always had.
#include <gtest/gtest.h>

#include "runtime/bundle/format.h"

namespace flashjit {
namespace {

using Bytes = std::vector<std::uint8_t>;

BundleIndex index_with(std::optional<BundleShards> shards) {
  return {.templates = "t", .items = {{.key = {"sm_80", "fwd bf16 d=64", ""}}}, .shards = std::move(shards)};
}

Bytes encoded(std::optional<BundleShards> shards) {
  return encode_bundle(index_with(std::move(shards)), {pack(Bytes(100, 7))});
}

Result<BundleIndex> decoded(const Bytes& file) {
  const auto head = bundle_head_bytes(std::span(file).first(kBundleHeaderBytes), file.size());
  if (!head) return head.error();
  return decode_index(std::span(file).first(*head), file.size());
}

TEST(BundleShards, AreReadAsTheyWereWritten) {
  const auto index = decoded(encoded(BundleShards{"digest", 180, 16, {3, 7, 16}}));
  ASSERT_TRUE(index) << index.error().message;
  ASSERT_TRUE(index->shards);
  EXPECT_EQ(index->shards->whole, "digest");
  EXPECT_EQ(index->shards->kernels, 180u);
  EXPECT_EQ(index->shards->count, 16u);
  EXPECT_EQ(index->shards->numbers, (std::vector<std::uint32_t>{3, 7, 16}));
  const Bytes empty = encode_bundle({"t", {}, BundleShards{"digest", 3, 5, {4}}}, {});
  ASSERT_TRUE(decoded(empty));
  EXPECT_TRUE(decoded(empty)->items.empty());
}

TEST(BundleShards, AWholeBundleHasTheFormatOfEarlierVersions) {
  const Bytes whole = encoded({}), shard = encoded(BundleShards{"digest", 180, 16, {3}});
  EXPECT_EQ(whole[8], 1);
  EXPECT_EQ(shard[8], 2);
  EXPECT_FALSE(decoded(whole)->shards);
}

TEST(BundleShards, NumbersAreOfTheCountAndRise) {
  for (const std::vector<std::uint32_t>& numbers :
       std::vector<std::vector<std::uint32_t>>{{}, {0}, {17}, {3, 3}, {4, 3}}) {
    const auto index = decoded(encoded(BundleShards{"digest", 180, 16, numbers}));
    ASSERT_FALSE(index);
    EXPECT_NE(index.error().message.find("not numbered"), std::string::npos) << index.error().message;
  }
}

TEST(BundleShards, ThereAreNotAnyNumberOfThem) {
  EXPECT_TRUE(decoded(encoded(BundleShards{"digest", 180, kMaxBundleShards, {3}})));
  EXPECT_FALSE(decoded(encoded(BundleShards{"digest", 180, kMaxBundleShards + 1, {3}})));
  EXPECT_FALSE(decoded(encoded(BundleShards{"digest", 180, 0xffffffff, {3}})));
}

TEST(BundleShards, AFormatWithoutWhatItSaysIsDamaged) {
  Bytes file = encoded({});
  file[8] = 2;
  const auto head = bundle_head_bytes(std::span(file).first(kBundleHeaderBytes), file.size());
  ASSERT_TRUE(head);
  const Sha256::Digest digest = sha256(std::span(file).first(*head - kBundleChecksumBytes));
  std::copy(digest.begin(), digest.end(), file.begin() + static_cast<std::ptrdiff_t>(*head - kBundleChecksumBytes));
  EXPECT_FALSE(decoded(file));
}

TEST(BundleShards, TheWholeIsTheKeysInAnyOrder) {
  const BundleKey a{"sm_80", "x", ""}, b{"sm_90a", "x", ""}, c{"sm_80", "x", "p"};
  EXPECT_EQ(whole_of({a, b, c}), whole_of({c, a, b}));
  EXPECT_NE(whole_of({a, b}), whole_of({a, c}));
  EXPECT_NE(whole_of({a}), whole_of({a, a}));
}

}  // namespace
}  // namespace flashjit
