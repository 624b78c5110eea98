#include "tools/fleet/shard.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

TEST(Shard, ReadsNumberAndCount) {
  for (const char* text : {"1/1", "3/16", "16/16", "10000/10000"}) {
    const auto shard = parse_shard(text);
    ASSERT_TRUE(shard) << text << ": " << shard.error().message;
    EXPECT_EQ(print(*shard), text);
  }
}

TEST(Shard, RefusesWhatIsNoneAndSaysTheLimits) {
  const std::pair<const char*, const char*> rows[] = {{"0/16", "numbered from 1 to 16"},
                                                      {"17/16", "there is no shard 17"},
                                                      {"-1/16", "there is no shard -1"},
                                                      {"x/16", "'x/16' is not NUMBER/COUNT"},
                                                      {"3", "NUMBER/COUNT"},
                                                      {"", "NUMBER/COUNT"},
                                                      {"3/", "NUMBER/COUNT"},
                                                      {"/3", "NUMBER/COUNT"},
                                                      {"1/2/3", "NUMBER/COUNT"},
                                                      {" 1/2", "NUMBER/COUNT"},
                                                      {"1/2 ", "NUMBER/COUNT"},
                                                      {"1.0/2", "NUMBER/COUNT"},
                                                      {"1/99999999999", "NUMBER/COUNT"},
                                                      {"1/0", "1 to 10000 shards, not 0"},
                                                      {"1/10001", "1 to 10000 shards, not 10001"}};
  for (const auto& [text, says] : rows) {
    const auto shard = parse_shard(text);
    ASSERT_FALSE(shard) << text;
    EXPECT_EQ(shard.error().kind, ErrorKind::Invalid) << text;
    EXPECT_TRUE(shard.error().message.starts_with("--shard: ")) << shard.error().message;
    EXPECT_NE(shard.error().message.find(says), std::string::npos) << shard.error().message;
  }
}

TEST(Shard, NumbersAreShownAsPeopleWriteThem) {
  EXPECT_EQ(numbers_text(std::vector{7}), "7");
  EXPECT_EQ(numbers_text(std::vector{3, 7}), "3 and 7");
  EXPECT_EQ(numbers_text(std::vector{1, 3, 7}), "1, 3 and 7");
  std::vector<int> many(40);
  std::iota(many.begin(), many.end(), 1);
  EXPECT_EQ(numbers_text(many), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 28 more");
}

std::vector<Piece> drawn(std::mt19937& random, std::size_t count) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < count; ++i) pieces.push_back({"key " + std::to_string(i), 1 + random() % 1000});
  return pieces;
}

std::map<std::string, int> by_key(const std::vector<Piece>& pieces, const std::vector<int>& numbers) {
  std::map<std::string, int> found;
  for (std::size_t i = 0; i < pieces.size(); ++i) found[pieces[i].key] = numbers[i];
  return found;
}

TEST(Shard, EveryPieceIsInOneWhateverTheOrder) {
  std::mt19937 random(1);
  for (const int count : {1, 2, 3, 16, 200}) {
    std::vector<Piece> pieces = drawn(random, 150);
    const auto numbers = deal(pieces, count);
    ASSERT_EQ(numbers.size(), pieces.size());
    for (const int number : numbers) EXPECT_TRUE(number >= 1 && number <= count) << number;
    const auto expected = by_key(pieces, numbers);
    for (int i = 0; i < 5; ++i) {
      std::shuffle(pieces.begin(), pieces.end(), random);
      EXPECT_EQ(by_key(pieces, deal(pieces, count)), expected) << count << " shards";
    }
  }
}

TEST(Shard, NoneHasMuchMoreToDoThanAnother) {
  std::mt19937 random(2);
  for (const int count : {2, 5, 16}) {
    const std::vector<Piece> pieces = drawn(random, 300);
    const auto numbers = deal(pieces, count);
    std::vector<std::uint64_t> loads(static_cast<std::size_t>(count));
    std::uint64_t dearest = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      loads[static_cast<std::size_t>(numbers[i] - 1)] += pieces[i].cost;
      dearest = std::max(dearest, pieces[i].cost);
    }
    // A piece goes to the shard with the least, so two shards differ by one piece at most.
    EXPECT_LE(*std::ranges::max_element(loads) - *std::ranges::min_element(loads), dearest) << count;
  }
}

TEST(Shard, DearOnesComeFirstAndEqualOnesByKey) {
  const std::vector<Piece> pieces = {{"c", 1}, {"a", 1}, {"dear", 3}, {"b", 1}};
  EXPECT_EQ(deal(pieces, 2), (std::vector{2, 2, 1, 2}));
  EXPECT_EQ(deal(pieces, 3), (std::vector{2, 2, 1, 3}));
  EXPECT_EQ(deal(pieces, 6), (std::vector{4, 2, 1, 3}));
  EXPECT_TRUE(deal({}, 4).empty());
}

}  // namespace
}  // namespace flashjit
