// Where the rows of a call stand in the whole sequence.
#include <gtest/gtest.h>

#include <map>

#include "flashjit/flashjit.hpp"
#include "tests/unit/runtime/narrow/filled.h"

namespace flashjit {
namespace {

const std::string kPlaced = "fwd bf16 d=64 heads=4/2 mask=\"causal\" places";

// 5 queries and 9 keys.
Arguments call(const std::map<std::string, double, std::less<>>& scalars) {
  const auto tensor = [](std::vector<std::int64_t> shape, std::uintptr_t at) {
    return Tensor{reinterpret_cast<void*>(at), "bf16", std::move(shape), {}};
  };
  Arguments a;
  a.q = tensor({2, 5, 4, 64}, 0x10000);
  a.k = a.v = tensor({2, 9, 2, 64}, 0x100000);
  a.o = tensor({2, 5, 4, 64}, 0x1000000);
  a.scalars = scalars;
  return a;
}

void expect_places(const Places& places, int begin, int step, int total) {
  EXPECT_EQ(places.begin, begin);
  EXPECT_EQ(places.step, step);
  EXPECT_EQ(places.total, total);
}

TEST(Places, ACallThatGivesNoneHasTheWholeSequence) {
  const auto params = fill(kPlaced, call({}));
  ASSERT_TRUE(params) << params.error().message;
  expect_places(params->q_places, 0, 1, 5);
  expect_places(params->k_places, 0, 1, 9);
}

TEST(Places, TheNumbersOfACallAreThoseOfTheKernel) {
  const auto params =
      fill(kPlaced, call({{"q_begin", 7}, {"q_step", 3}, {"q_total", 20}, {"k_begin", 1}, {"k_total", 10}}));
  ASSERT_TRUE(params) << params.error().message;
  expect_places(params->q_places, 7, 3, 20);
  expect_places(params->k_places, 1, 1, 10);
}

TEST(Places, RowsOutsideOfTheSequenceAreRefused) {
  expect_refused(kPlaced, call({{"q_begin", -1}}), "scalars.q_begin: -1 is negative");
  expect_refused(kPlaced, call({{"k_step", 0}}), "scalars.k_step: 0 is outside 1..65536");
  expect_refused(kPlaced, call({{"k_step", 65537}}), "scalars.k_step: 65537 is outside 1..65536");
  expect_refused(kPlaced, call({{"q_begin", 7}}), "scalars.q_total: missing, and q stands at 7 + 1 i");
  expect_refused(kPlaced, call({{"q_begin", 7}, {"q_step", 3}, {"q_total", 19}}),
                 "scalars.q_total: 19 is too short: the last of 5 rows of q stands at 19");
  expect_refused(kPlaced, call({{"k_total", -3}}), "scalars.k_total: -3 is negative");
  expect_refused(kPlaced, call({{"k_total", 1073741824}}), "scalars.k_total: 1073741824 is above 1073741823");
  expect_refused(kPlaced, call({{"k_begin", 0.5}}), "scalars.k_begin: 0.5 is no value of i32");
}

TEST(Places, DropoutDrawsForBlocksOfRows) {
  const std::string spec = kPlaced + " dropout=0.1";
  const std::map<std::string, double, std::less<>> numbers = {{"seed", 1},     {"offset", 2},   {"q_begin", 64},
                                                              {"q_total", 99}, {"k_begin", 32}, {"k_total", 99}};
  const auto params = fill(spec, call(numbers));
  ASSERT_TRUE(params) << params.error().message;
  expect_places(params->q_places, 64, 1, 99);
  const auto refuse = [&](const char* name, double number, const char* says) {
    auto others = numbers;
    others[name] = number;
    expect_refused(spec, call(others), says);
  };
  refuse("k_begin", 40,
         "scalars.k_begin: 40 is no multiple of 32, the rows that dropout draws for together; begin at 32");
  refuse("q_step", 2, "scalars.q_step: 2, and dropout draws for blocks of 32 neighbouring rows; give 1");
}

TEST(Places, TheyAreNumbersOfSpecsThatAskForThem) {
  expect_refused("fwd bf16 d=64 heads=4/2 mask=\"causal\"", call({{"q_begin", 0}}),
                 "scalars.q_begin: given, and the spec does not ask for it");
  Arguments tensor = call({});
  tensor.params["q_begin"] = {reinterpret_cast<void*>(0x2000000), "i32", {1}, {}};
  expect_refused(kPlaced, tensor, "params.q_begin: it is a number");
}

// A tensor is read at positions.
TEST(Places, IndicesAreThoseOfTheWholeSequence) {
  const std::string spec = "fwd bf16 d=64 heads=4/2 params=\"t: fp32[1]\" score=\"s + t[k]\" places";
  Arguments arguments = call({{"k_begin", 8}, {"k_total", 17}});
  arguments.params["t"] = {reinterpret_cast<void*>(0x2000000), "fp32", {17}, {}};
  const auto params = fill(spec, arguments);
  EXPECT_TRUE(params) << params.error().message;
  arguments.params["t"].shape = {16};
  expect_refused(spec, arguments, "params.t: index 0 (`k`) runs from 0 to 16");
}

}  // namespace
}  // namespace flashjit
