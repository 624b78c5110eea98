// What a call may read and write: indices of tensor parameters, and memory that outputs share.
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/runtime/calls.h"

namespace flashjit {
namespace {

TEST(Arguments, IndicesAreComputedFromScalars) {
  struct Row {
    const char *params, *index;
    double n;
    const char* words;  // empty: accepted
  };
  static const Row kRows[] = {
      {"n: i32", "n", 7, ""},
      {"n: i32", "n", 8, "params.t: index 0 (`n`) is 8 at these sizes (b=2, q_len=5, k_len=9, n=8), the tensor has 8"},
      {"n: i32", "n", -1, "is -1 at"},
      {"n: i32", "n", 1e9, "is 1000000000 at"},
      {"n: u32", "n", 4e9, "is 4000000000 at"},
      {"n: i64", "n", -9007199254740992.0, "is -9007199254740992 at"},
      {"n: u8", "n", 255, "is 255 at"},
      {"n: i32", "k + n", -1, "index 0 (`k + n`) runs from -1 to 7"},
      {"n: i32", "k / 2 + n", 3, ""},
      {"n: i32", "k / 2 + n", 4, "runs from 4 to 8"},
      {"n: i32", "min(n, 7)", -1, "is -1 at"},
      {"n: i32", "min(max(n, 0), 7)", -2147483648.0, ""},
      {"n: i32", "k % max(n, 1)", 8, ""},
      {"n: i32", "k % max(n, 1)", 10, "runs from 0 to 8"},
      {"n: i32, c: fp32", "where(c > 1.0, n, 2)", 8, "runs from 2 to 8"},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(std::string(row.index) + ", n=" + std::to_string(row.n));
    Arguments a = dense();
    a.params["t"] = {address(0x70000), "fp32", {8}, {}};
    a.scalars["n"] = row.n;
    if (std::string_view(row.params).find("c:") != std::string_view::npos) a.scalars["c"] = 0.5;
    const std::string spec = kSpec + " params=\"t: fp32[1], " + row.params + "\" score=\"s + t[" + row.index + "]\"";
    for (const bool gpu : {false, true}) {
      const auto params = fill(plan_of(spec, gpu), a);
      ASSERT_EQ(static_cast<bool>(params), row.words[0] == 0) << (params ? "" : params.error().message);
      if (params) continue;
      EXPECT_NE(params.error().message.find(row.words), std::string::npos) << params.error().message;
    }
  }
}

// Where no key is read, an element that all keys share still is: ends of tiles depend on it.
TEST(Arguments, WithoutKeysElementsOfBatchesAreRead) {
  Arguments a = dense();
  a.k.shape[1] = a.v.shape[1] = 0;
  a.params["t"] = {address(0x70000), "i32", {1}, {}};
  const auto by_batch = fill(plan_of(kSpec + " params=\"t: i32[1]\" mask=\"k < t[b]\""), a);
  ASSERT_FALSE(by_batch);
  EXPECT_NE(by_batch.error().message.find("(`b`) runs from 0 to 1"), std::string::npos) << by_batch.error().message;
  a.params["t"].shape = {0};
  EXPECT_TRUE(fill(plan_of(kSpec + " params=\"t: i32[1]\" mask=\"q < t[k]\""), a));
}

}  // namespace
}  // namespace flashjit
