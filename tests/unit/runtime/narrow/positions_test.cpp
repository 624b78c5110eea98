// Positions of rows that turn before they are rounded, as calls give them.
#include <gtest/gtest.h>

#include "flashjit/flashjit.hpp"
#include "tests/unit/runtime/narrow/filled.h"

namespace flashjit {
namespace {

constexpr const char* kSpec = "quantize bf16 d=64 heads=4 rope=half(32)";

void* address(int number) { return reinterpret_cast<void*>(0x1000000ull * static_cast<unsigned>(number)); }

// 2 sequences of 70 tokens, and tables of 100 positions.
Arguments turning_call() {
  Arguments a;
  a.params["x"] = {address(1), "bf16", {2, 70, 4, 64}, {}};
  a.params["y"] = {address(2), "e4m3", {2, 70, 4, 64}, {}};
  a.params["scale"] = {address(3), "fp32", {2, 4}, {}};
  a.params["cos"] = {address(4), "fp32", {100, 16}, {}};
  a.params["sin"] = {address(5), "fp32", {100, 16}, {}};
  return a;
}

TEST(Positions, FollowEachOther) {
  const auto params = fill(kSpec, turning_call());
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->positions, nullptr);
  EXPECT_EQ(params->first_position, 0);
  EXPECT_EQ(params->cos, address(4));
}

TEST(Positions, AreThoseOfTheCaller) {
  Arguments arguments = turning_call();
  arguments.params["positions"] = {address(6), "i32", {2, 70}, {0, 1}};
  const auto params = fill(kSpec, arguments);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->positions, address(6));
  EXPECT_EQ(params->positions_stride.batch, 0);
  EXPECT_EQ(params->positions_stride.token, 1);
  EXPECT_EQ(params->rope_positions, 100);
}

TEST(Positions, WhatDoesNotFit) {
  Arguments arguments = turning_call();
  arguments.params["cos"].shape[0] = arguments.params["sin"].shape[0] = 69;
  expect_refused(kSpec, arguments, "cos.shape[0]: 69 positions, and a token of x is at position 69");
  arguments.params["positions"] = {address(6), "i32", {2, 70}, {}};
  EXPECT_TRUE(fill(kSpec, arguments)) << "which lie on the device";
  arguments.params["positions"].shape[1] = 69;
  expect_refused(kSpec, arguments, "positions.shape[1]: 69, must be 70 (tokens of x)");
  arguments = turning_call();
  arguments.params["cos"].data = reinterpret_cast<void*>(0x4000008);
  expect_refused(kSpec, arguments, "cos.data: aligned to 8 bytes only, the kernel was made for 16; add bytes=8");
  EXPECT_TRUE(fill(std::string(kSpec) + " bytes=8", arguments));
  arguments = turning_call();
  arguments.params["positions"] = {address(6), "i32", {2, 70}, {}};
  expect_refused("quantize bf16 d=64 heads=4", arguments, "cos: given, and the spec does not ask for it");
}

// Of a call that rounds and attends, for which queries line up with the last keys, or with the first ones.
TEST(Positions, OfQueriesAndKeys) {
  Arguments arguments;
  arguments.q = {address(1), "bf16", {2, 70, 4, 64}, {}};
  arguments.k = arguments.v = {address(2), "bf16", {2, 50, 4, 64}, {}};
  arguments.o = {address(3), "bf16", {2, 70, 4, 64}, {}};
  arguments.params["cos"] = arguments.params["sin"] = {address(4), "fp32", {50, 32}, {}};
  const std::string spec = "fwd bf16 d=64 heads=4 compute=e4m3 rope=half(64)";
  const auto params = fill(spec, arguments);
  EXPECT_TRUE(params) << params.error().message;
  expect_refused(spec + " align=top_left", arguments,
                 "cos.shape[0]: 50 positions, sequences of this call can have 70 tokens (q_len)");
  arguments.k.shape[1] = arguments.v.shape[1] = 51;
  expect_refused(spec, arguments, "cos.shape[0]: 50 positions, sequences of this call can have 51 tokens (k_len)");
}

}  // namespace
}  // namespace flashjit
