#include "tools/fleet/completeness.h"

#include <gtest/gtest.h>

namespace flashjit {
namespace {

std::string problem(const std::vector<HeldShards>& held) {
  const auto complete = check_complete(held);
  if (complete) return "";
  EXPECT_EQ(complete.error().kind, ErrorKind::NotFound);
  return complete.error().message;
}

TEST(Completeness, AllShardsOfAllWholes) {
  EXPECT_EQ(problem({}), "");
  EXPECT_EQ(problem({{"a", "x", 1, {1}}}), "");
  EXPECT_EQ(problem({{"a", "x", 3, {1, 3}}, {"b", "x", 3, {2}}, {"c", "x", 3, {2}}}), "");
  EXPECT_EQ(problem({{"a", "x", 2, {1}}, {"b", "y", 1, {1}}, {"c", "x", 2, {2}}}), "");
}

TEST(Completeness, NamesThoseThatAreMissing) {
  EXPECT_EQ(
      problem({{"a", "the 9 kernels abc", 4, {1, 3}}}).find("shards 2 and 4 of 4 are missing, of the 9 kernels abc;"),
      0u);
  EXPECT_EQ(problem({{"a", "x", 2, {1}}}).find("shard 2 of 2 is missing, of x;"), 0u);
  EXPECT_EQ(problem({{"a", "x", 2, {}}}).find("shards 1 and 2 of 2 are missing, of x;"), 0u);
}

TEST(Completeness, NamesFilesThatHaveShardsOfAnotherWhole) {
  const std::string text = problem({{"a", "x", 3, {1, 3}}, {"b", "y", 3, {2}}});
  for (const char* says : {"shard 2 of 3 is missing, of x, of which there is a",
                           "shards 1 and 3 of 3 are missing, of y", "of which there is b"})
    EXPECT_NE(text.find(says), std::string::npos) << text;
  // One whole in shares of another size is another work.
  EXPECT_NE(problem({{"a", "x", 2, {1}}, {"b", "x", 3, {2}}}), "");
}

}  // namespace
}  // namespace flashjit
