// Scales of elements of 8 bits, as calls give them: of Q, and in blocks of rows.
#include <gtest/gtest.h>

#include "flashjit/flashjit.hpp"
#include "tests/unit/runtime/narrow/filled.h"

namespace flashjit {
namespace {

// A call of Q, K and V of 8 bits: 2 sequences of 70 queries and 200 keys, which are 2 and 4 blocks of 64.
Arguments narrow_call(const float* scales) {
  void* const somewhere = reinterpret_cast<void*>(0x10000);
  Arguments a;
  a.q = {somewhere, "e4m3", {2, 70, 4, 64}, {}};
  a.k = a.v = {somewhere, "e4m3", {2, 200, 2, 64}, {}};
  a.o = {reinterpret_cast<void*>(0x1000000), "bf16", {2, 70, 4, 64}, {}};
  a.params["scale_q"] = {const_cast<float*>(scales), "fp32", {2, 4}, {}};
  return a;
}

TEST(Scales, OfQueriesAndBlocks) {
  float scales[16] = {};
  Arguments arguments = narrow_call(scales);
  const auto whole = fill("fwd e4m3 d=64 heads=4/2", arguments);
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(whole->scale_q, scales);
  EXPECT_EQ(whole->scale_q_stride.batch, 4);
  EXPECT_EQ(whole->scale_q_stride.head, 1);
  EXPECT_EQ(whole->scale_q_stride.token, 0);
  EXPECT_EQ(whole->scale_k, nullptr);

  const std::string blocks = "fwd e4m3 d=64 heads=4/2 scales=block(64)";
  arguments.params["scale_q"].shape = {2, 2, 4};
  arguments.params["scale_k"] = {scales, "fp32", {4, 2}, {}};
  arguments.params["scale_v"] = {scales, "fp32", {2, 1, 2}, {}};
  const auto in_blocks = fill(blocks, arguments);
  ASSERT_TRUE(in_blocks) << in_blocks.error().message;
  const auto expect_strides = [](const Strides& s, Int64 batch, Int64 token, Int64 head) {
    EXPECT_EQ(s.batch, batch);
    EXPECT_EQ(s.token, token);
    EXPECT_EQ(s.head, head);
  };
  expect_strides(in_blocks->scale_q_stride, 8, 4, 1);
  expect_strides(in_blocks->scale_k_stride, 0, 2, 1);
  expect_strides(in_blocks->scale_v_stride, 2, 0, 1);
  arguments.params["scale_k"].shape = {5, 2};
  expect_refused(blocks, arguments, "scale_k.shape[1]: 5, must be 4 (blocks of tokens of k)");
  arguments.params.erase("scale_k");
  arguments.params["scale_q"].shape = {2, 70, 4};
  expect_refused(blocks, arguments, "scale_q.shape[1]: 70, must be 2 (blocks of tokens of q)");
}

// 3 sequences of 170 and 300 tokens, of which the longest has 100 and 129.
TEST(Scales, OfBlocksOfPackedSequences) {
  void *const somewhere = reinterpret_cast<void*>(0x10000), *const elsewhere = reinterpret_cast<void*>(0x1000000);
  float scales[24] = {};
  Arguments arguments;
  arguments.q = {somewhere, "e4m3", {170, 4, 64}, {}};
  arguments.k = arguments.v = {somewhere, "e4m3", {300, 2, 64}, {}};
  arguments.o = {elsewhere, "bf16", {170, 4, 64}, {}};
  arguments.offsets_q = arguments.offsets_k = {somewhere, "i32", {4}, {}};
  arguments.max_q_len = 100, arguments.max_k_len = 129;
  arguments.params["scale_q"] = {scales, "fp32", {3, 2, 4}, {}};
  arguments.params["scale_k"] = {scales, "fp32", {3, 3, 2}, {}};
  const std::string spec = "fwd e4m3 d=64 heads=4/2 layout=packed scales=block(64)";
  const auto params = fill(spec, arguments);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->scale_k_stride.batch, 6);
  EXPECT_EQ(params->scale_k_stride.token, 2);
  arguments.max_k_len = 0;
  expect_refused(spec, arguments, "scale_k.shape[1]: 3, must be 5 (blocks of tokens of k)");
  arguments.max_k_len = 129;
  arguments.params["scale_q"].shape = {2, 2, 4};
  expect_refused(spec, arguments, "scale_q.shape[0]: 2, must be 3 (batch of q)");
}

TEST(Scales, OfBlocksOfPages) {
  float scales[40] = {};
  Arguments arguments = narrow_call(scales);
  arguments.k = arguments.v = {arguments.k.data, "e4m3", {5, 128, 2, 64}, {}};
  arguments.params["k_lens"] = {arguments.k.data, "i32", {2}, {}};
  arguments.params["block_table"] = {arguments.k.data, "i32", {2, 3}, {}};
  arguments.params["scale_q"].shape = {2, 2, 4};
  arguments.params["scale_k"] = {scales, "fp32", {5, 2, 2}, {}};
  const std::string spec = "fwd e4m3 d=64 heads=4/2 layout=paged(128) scales=block(64)";
  const auto params = fill(spec, arguments);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->scale_k_stride.batch, 4);
  EXPECT_EQ(params->scale_k_stride.token, 2);
  arguments.params["scale_k"].shape = {2, 6, 2};
  expect_refused(spec, arguments, "scale_k.shape[0]: 2, must be 5 (pages of k)");
  arguments.params["scale_k"].shape = {5, 128, 2};
  expect_refused(spec, arguments, "scale_k.shape[1]: 128, must be 2 (blocks of a page in the spec)");
}

TEST(Scales, OfQueriesAreOfEightBits) {
  float scale = 1;
  Arguments arguments = narrow_call(&scale);
  arguments.q.dtype = "bf16";
  arguments.k.dtype = arguments.v.dtype = "e5m2";
  expect_refused("fwd bf16 kv=e5m2 d=64 heads=4/2", arguments,
                 "scale_q: given, and the elements of q have no scale in this spec");
}

TEST(Scales, ThatAreWritten) {
  void *const somewhere = reinterpret_cast<void*>(0x10000), *const elsewhere = reinterpret_cast<void*>(0x1000000);
  float scales[16] = {};
  Arguments arguments;
  arguments.params["x"] = {somewhere, "fp16", {2, 70, 4, 64}, {}};
  arguments.params["y"] = {elsewhere, "e5m2", {2, 70, 4, 64}, {}};
  arguments.params["scale"] = {scales, "fp32", {2, 2, 4}, {}};
  const std::string spec = "quantize fp16 out=e5m2 d=64 heads=4 scales=block(64)";
  const auto params = fill(spec, arguments);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->scale_y_stride.batch, 8);
  EXPECT_EQ(params->scale_y_stride.token, 4);
  EXPECT_EQ(params->scale_y_stride.head, 1);
  arguments.params["scale"].shape = {2, 70, 4};
  expect_refused(spec, arguments, "scale.shape[1]: 70, must be 2 (blocks of tokens of x)");
}

}  // namespace
}  // namespace flashjit
