// Keys, and the bytes of an entry.
#include "runtime/store/entry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/store/key.h"
#include "runtime/store/sha256.h"

namespace flashjit {
namespace {

void put_checksum(std::vector<std::uint8_t>& entry) {
  const auto digest = sha256(std::span(entry).first(entry.size() - 32));
  std::copy(digest.begin(), digest.end(), entry.end() - 32);
}

TEST(StoreKeyTest, EveryFieldAndItsBordersCount) {
  const auto digest = [](std::initializer_list<std::pair<const char*, const char*>> fields) {
    KeyBuilder builder;
    for (const auto& [label, value] : fields) builder.field(label, value);
    return builder.finish().digest;
  };
  const std::string base = digest({{"spec", "a"}, {"target", "b"}});
  EXPECT_EQ(base, digest({{"spec", "a"}, {"target", "b"}}));
  EXPECT_NE(base, digest({{"spec", "b"}, {"target", "b"}}));
  EXPECT_NE(base, digest({{"spec", "a"}, {"target", "c"}}));
  EXPECT_NE(base, digest({{"spec", "a"}, {"targe", "b"}}));
  EXPECT_NE(base, digest({{"target", "b"}, {"spec", "a"}}));
  EXPECT_NE(base, digest({{"spec", "a"}}));
  EXPECT_NE(digest({{"x", "ab"}, {"y", "c"}}), digest({{"x", "a"}, {"y", "bc"}}));
  EXPECT_NE(digest({{"x", ""}}), digest({{"", "x"}}));
}

TEST(StoreEntryTest, RoundTrip) {
  const StoreEntry entry{
      .key_text = "spec: a\n", .facts = {{"empty", ""}, {"text", "a\\n\nb=c"}}, .payload = {1, 2, 3}};
  const auto decoded = decode(encode(entry));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->key_text, entry.key_text);
  EXPECT_EQ(decoded->facts, entry.facts);
  EXPECT_EQ(decoded->payload, entry.payload);
}

TEST(StoreEntryTest, EveryFlippedBitAndEveryLengthIsFound) {
  const std::vector<std::uint8_t> good =
      encode({.key_text = "spec: a\n", .facts = {{"registers", "128"}}, .payload = std::vector<std::uint8_t>(300, 5)});
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = good;
      bad[at] ^= static_cast<std::uint8_t>(1 << bit);
      ASSERT_FALSE(decode(bad)) << "byte " << at << " bit " << bit;
    }
    ASSERT_FALSE(decode(std::span(good).first(at))) << at;
  }
  auto longer = good;
  longer.push_back(0);
  EXPECT_FALSE(decode(longer));
}

TEST(StoreEntryTest, LengthsWithARightChecksumAreStillChecked) {
  // Anybody can compute the checksum: the lengths (offset 12: key, 16: facts, 20: payload) may be made up.
  const std::vector<std::uint8_t> good = encode({.key_text = "k", .facts = {{"a", "b"}}, .payload = {1, 2, 3, 4}});
  for (const std::size_t at : {12, 13, 15, 16, 19, 20, 24, 27}) {
    for (const int value : {0, 1, 2, 127, 255}) {
      auto bad = good;
      if (bad[at] == value) continue;
      bad[at] = static_cast<std::uint8_t>(value);
      put_checksum(bad);
      EXPECT_FALSE(decode(bad)) << "byte " << at << " = " << value;
    }
  }
}

TEST(StoreEntryTest, FactsInAnotherFormAreRefused) {
  const auto with_facts = [](const std::string& facts) {
    std::vector<std::uint8_t> bytes =
        encode({.key_text = "k", .facts = {{std::string(facts.size() - 2, 'x'), ""}}, .payload = {1}});
    std::copy(facts.begin(), facts.end(), bytes.begin() + 28 + 1);  // of the same length, behind header and key
    put_checksum(bytes);
    return bytes;
  };
  EXPECT_TRUE(decode(with_facts("a=1\nb=\\n\\\\\n")));
  for (const char* facts : {"b=1\na=2\n", "a=1\na=2\n", "a=1\na=1\n", "a=\\x\n", "a=\\\n"}) {
    EXPECT_FALSE(decode(with_facts(facts))) << facts;
  }
}

}  // namespace
}  // namespace flashjit
